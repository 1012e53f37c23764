"""Settings as a program gives them, and messages about them as a program reads them."""

from __future__ import annotations

import re

from cputrain.errors import UsageError
from cputrain.launch.settings import as_typed, checked_setting, knob_named
from cputrain.machine import format_list
from cputrain.plan.policies import KNOBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cputrain.errors import CputrainError
    from cputrain.plan import Setting

FLAGS = {knob.flag: knob for knob in KNOBS.values()}

SPOKEN = re.compile(rf"({'|'.join(sorted(FLAGS, reverse=True))})(?![\w-])(?: ([\w,-]*\w))?")
"""A flag in a message, and the word behind it."""


def settings_of(given: Mapping[str, object]) -> dict[str, Setting]:
    """Checked as the same words of a file are; None leaves a setting to whoever else says it."""
    found = {}
    for name, value in given.items():
        where = f"the argument {name}"
        knob = knob_named(name, where)
        if value is not None:
            found[knob.name] = checked_setting(knob, _typed(value, where), where)
    return found


def _typed(value: object, where: str) -> str:
    """The value as it would be typed."""
    if isinstance(value, (str, int)):  # a bool is an int, and is on or off
        return as_typed(value)
    if isinstance(value, (list, tuple, set, frozenset, range)) and _are_cpus(value):
        return format_list(tuple(sorted(value)))
    raise UsageError(
        where,
        "must be a text, a whole number, True, False, or a list of CPUs",
        found=repr(value)[:60],
        do="Say it as on the command line, in quotes.",
    )


def _are_cpus(value: Iterable[object]) -> bool:
    return all(type(one) is int and one >= 0 for one in value)


def in_python(text: str) -> str:
    """A message with arguments in the place of flags: threads=2 for --threads 2."""
    return SPOKEN.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    knob, word = FLAGS[found[1]], found[2]
    if word is None:
        return knob.name
    if word.isdigit() or word in knob.takes.split("|"):
        return f"{knob.name}={word if word.isdigit() else repr(word)}"
    if re.fullmatch(r"[\d,-]+", word):
        return f"{knob.name}={word!r}"
    return f"{knob.name} {word}"


def in_one_message(error: CputrainError) -> CputrainError:
    """The error in the words of a program; IPython shows it without a traceback of ours."""
    told = type(error)(
        in_python(error.parameter), in_python(error.rule), found=error.found, do=in_python(error.do)
    )
    # IPython asks an exception how it wants to be shown
    setattr(told, "_render_traceback_", lambda: [f"{type(told).__name__}: {told}"])  # noqa: B010
    return told
