"""User settings and where they come from: the command line, CPUTRAIN_* variables, then files.

The files are `cputrain.toml`, or `[tool.cputrain]` in pyproject.toml, in the nearest folder at or
above the working folder that has one of them; then `config.toml` in the user's configuration
folder.
"""

from __future__ import annotations

import os

from cputrain.errors import UsageError
from cputrain.settings.core.decision import UserValue
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.suggestions import closest, did_you_mean, value_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.settings.core.setting import Setting


def read_settings(parsed: Parsed, environment: Mapping[str, str]) -> dict[str, UserValue]:
    """Return the value of each setting by its name, from the place with the highest precedence.

    Raises:
        UsageError: A file or a variable has an invalid setting.
    """
    settings: dict[str, UserValue] = {}
    for path, table in _setting_tables(environment):
        if not isinstance(table, dict):
            raise UsageError(
                f"tool.cputrain in {path}",
                "must be a table of settings",
                found=repr(table),
                do="For example: [tool.cputrain] and, under it, threads = 4.",
            )
        for name, value in table.items():
            where = f"{name} in {path}"
            setting = setting_named(name, where)
            settings.setdefault(setting.name, checked_value(setting, as_typed(value), where))
    for name, setting in USER_SETTINGS.items():
        if environment.get(setting.variable):
            value = environment[setting.variable]
            settings[name] = checked_value(setting, value, setting.variable)
        if parsed.has(setting.flag):
            settings[name] = UserValue(value=parsed.values[setting.flag], where=setting.flag)
    return settings


def checked_value(setting: Setting[Any], value: str, where: str) -> UserValue:
    """Return a value from a file, a variable or a keyword argument; check the choices.

    Args:
        where: Name of the place that sets it, for messages.
    """
    if setting.choices and value not in setting.choices:
        raise UsageError(
            where,
            f"must be one of {', '.join(setting.choices)}",
            found=repr(value),
            do=value_hint(value, setting.choices)
            or f"{setting.help[0].upper()}{setting.help[1:]}.",
        )
    return UserValue(value=value, where=where)


def setting_named(name: str, where: str) -> Setting[Any]:
    """Return the setting of a name; raise UsageError with a suggestion if there is none."""
    setting = USER_SETTINGS.get(name.replace("-", "_"))
    if setting is None:
        raise UsageError(
            where,
            f"is not a setting of cputrain; the settings are {', '.join(USER_SETTINGS)}",
            do=did_you_mean(closest(name, USER_SETTINGS)) or "Remove it.",
        )
    return setting


def as_typed(value: Any) -> str:
    """Return a value of TOML or Python as it would be typed on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _setting_tables(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the settings of each file, the highest precedence first."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the working folder was removed, so there is no project
        folder = ""
    while folder:
        path = os.path.join(folder, "cputrain.toml")
        if os.path.isfile(path):
            yield path, _read_toml(path)
            break
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            # parsing TOML costs 20 ms in every launch, and most projects have no cputrain settings
            if _mentions_cputrain(path):
                tool_table = _read_toml(path).get("tool", {})
                yield path, tool_table.get("cputrain", {}) if isinstance(tool_table, dict) else {}
            break
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    config_folder = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config_folder):  # the XDG specification ignores a relative path
        config_folder = os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(config_folder, "cputrain", "config.toml")
    if os.path.isfile(path):
        yield path, _read_toml(path)


def _mentions_cputrain(path: str) -> bool:
    """Return whether a file contains the word cputrain."""
    try:
        with open(path, "rb") as file:
            return b"cputrain" in file.read()
    except OSError:  # an unreadable pyproject.toml most likely has no cputrain settings
        return False


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            path,
            "must be a readable TOML file",
            found=" ".join(str(error).split()),
            do="Fix it, or move it away.",
        ) from None
