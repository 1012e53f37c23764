"""Settings as keyword arguments of `cputrain.setup`, and messages that name them."""

from __future__ import annotations

import re

from cputrain.errors import ArgumentTypeError
from cputrain.launch.settings import as_typed, checked_value, setting_named
from cputrain.machine import format_list
from cputrain.settings.core.registry import USER_SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cputrain.errors import CputrainError
    from cputrain.settings.core.decision import UserValue

SETTINGS_BY_FLAG = {setting.flag: setting for setting in USER_SETTINGS.values()}

FLAG_IN_MESSAGE = re.compile(
    rf"({'|'.join(sorted(SETTINGS_BY_FLAG, reverse=True))})(?![\w-])(?: ([\w,-]*\w))?"
)
"""Matches a flag in a message, and the word after it."""


def settings_from_kwargs(kwargs: Mapping[str, object]) -> dict[str, UserValue]:
    """Check keyword arguments as values of cputrain.toml are checked; None leaves a setting unset.

    Raises:
        UsageError: An argument names no setting, or its value breaks the setting's rule.
    """
    settings = {}
    for name, value in kwargs.items():
        where = f"the argument {name}"
        setting = setting_named(name, where)
        if value is not None:
            text = _command_line_text(value, where)
            settings[setting.name] = checked_value(setting, text, where)
    return settings


def _command_line_text(value: object, where: str) -> str:
    """Return a value as it would be typed on the command line."""
    if isinstance(value, (str, int)):  # bool is an int: on or off
        return as_typed(value)
    if isinstance(value, (list, tuple, set, frozenset, range)) and _are_cpus(value):
        return format_list(tuple(sorted(value)))
    raise ArgumentTypeError(
        where,
        "must be a string, a whole number, True, False, or a list of CPUs",
        found=repr(value)[:60],
        do="Say it as on the command line, in quotes.",
    )


def _are_cpus(values: Iterable[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def flags_to_kwargs(text: str) -> str:
    """Replace flags in a message by keyword arguments: "--threads 2" by "threads=2"."""
    return FLAG_IN_MESSAGE.sub(_kwarg, text)


def _kwarg(match: re.Match[str]) -> str:
    setting, word = SETTINGS_BY_FLAG[match[1]], match[2]
    if word is None:
        return setting.name
    if word.isdigit() or word in setting.takes.split("|"):
        return f"{setting.name}={word if word.isdigit() else repr(word)}"
    if re.fullmatch(r"[\d,-]+", word):
        return f"{setting.name}={word!r}"
    return f"{setting.name} {word}"


def error_with_kwargs(error: CputrainError) -> CputrainError:
    """Return the error with keyword arguments in place of flags; IPython shows it in one line."""
    copy = type(error)(
        flags_to_kwargs(error.parameter),
        flags_to_kwargs(error.rule),
        found=error.found,
        do=flags_to_kwargs(error.do),
    )
    # IPython calls this hook of an exception in place of printing a traceback
    setattr(copy, "_render_traceback_", lambda: [f"{type(copy).__name__}: {copy}"])  # noqa: B010
    return copy
