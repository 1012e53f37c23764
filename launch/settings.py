"""What the user set, and where: the command line, CPUTRAIN_* variables, then files.

A file is `cputrain.toml`, or `[tool.cputrain]` in the nearest pyproject.toml above the working
folder, then `config.toml` in the user's configuration folder.
"""

from __future__ import annotations

import os

from cputrain.errors import UsageError
from cputrain.plan import Setting
from cputrain.plan.policies import KNOBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.plan import Knob


def read_settings(parsed: Parsed, environment: Mapping[str, str]) -> dict[str, Setting]:
    """Each knob's setting from the place that has the last word on it."""
    found: dict[str, Setting] = {}
    for path, table in _files(environment):
        if not isinstance(table, dict):
            raise UsageError(
                f"tool.cputrain in {path}",
                "must be a table of settings",
                found=repr(table),
                do="Say for example [tool.cputrain] and, under it, threads = 4.",
            )
        for name, value in table.items():
            where = f"{name} in {path}"
            knob = known(name, where)
            found.setdefault(knob.name, checked(knob, written(value), where))
    for knob in KNOBS.values():
        if environment.get(knob.variable):
            found[knob.name] = checked(knob, environment[knob.variable], knob.variable)
        if parsed.has(knob.flag):
            found[knob.name] = Setting(value=parsed.values[knob.flag], where=knob.flag)
    return found


def checked(knob: Knob, value: str, where: str) -> Setting:
    """A setting that was not read from a table of options."""
    if knob.choices and value not in knob.choices:
        raise UsageError(
            where,
            f"must be one of {', '.join(knob.choices)}",
            found=repr(value),
            do=f"{knob.help[0].upper()}{knob.help[1:]}.",
        )
    return Setting(value=value, where=where)


def known(name: str, where: str) -> Knob:
    """The knob of a name; an error that suggests what may have been meant."""
    knob = KNOBS.get(name.replace("-", "_"))
    if knob is None:
        from difflib import get_close_matches

        close = get_close_matches(name, KNOBS, n=1)
        raise UsageError(
            where,
            f"is no setting of cputrain; those are {', '.join(KNOBS)}",
            do=f"Did you mean {close[0]}?" if close else "Take it out.",
        )
    return knob


def written(value: Any) -> str:
    """A value of TOML or Python as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _files(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables of settings, the one with the last word first."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the working folder was removed: no project is above it
        folder = ""
    while folder:
        path = os.path.join(folder, "cputrain.toml")
        if os.path.isfile(path):
            yield path, _read(path)
            break
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            # reading TOML costs 20 ms, most projects say nothing to us, and this is at every start
            if _mentions_us(path):
                tool = _read(path).get("tool", {})
                yield path, tool.get("cputrain", {}) if isinstance(tool, dict) else {}
            break
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative one is ignored
        base = os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(base, "cputrain", "config.toml")
    if os.path.isfile(path):
        yield path, _read(path)


def _mentions_us(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"cputrain" in file.read()
    except OSError:  # it is the project's file, and likely says nothing to us
        return False


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            path,
            "must be a readable TOML file",
            found=" ".join(str(error).split()),
            do="Mend it or move it away.",
        ) from None
