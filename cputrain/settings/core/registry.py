"""All settings: the modules in the folder of `cputrain.settings`, in the order of their `order`."""

from __future__ import annotations

import os
from importlib import import_module

from cputrain import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.settings.core.setting import Setting


def _load_settings() -> dict[str, Setting[Any]]:
    names = (
        name.removesuffix(".py")
        for name in os.listdir(settings.__path__[0])
        if name.endswith(".py") and name != "__init__.py"
    )
    modules = [import_module(f"{settings.__name__}.{name}") for name in names]
    loaded: list[Setting[Any]] = [module.SETTING for module in modules]
    loaded.sort(key=lambda setting: (setting.order, setting.name))
    return {setting.name: setting for setting in loaded}


SETTINGS = _load_settings()
"""All settings by name, in the order of plans."""

USER_SETTINGS = {name: setting for name, setting in SETTINGS.items() if setting.takes}
"""Those that users can set."""

APPLIED_IN_ORDER = tuple(
    sorted(SETTINGS.values(), key=lambda setting: (setting.application_order, setting.order))
)
"""All settings, in the order in which they are applied."""

VARIABLES = frozenset().union(*(setting.variables for setting in SETTINGS.values()))
"""Environment variables that a plan may set; a saved plan cannot set any other, as PATH."""

PLAIN_VALUES = {name: setting.plain for name, setting in SETTINGS.items() if setting.plain}
"""Values under which a launch differs from python in nothing but its number of threads."""


_TRIED = sorted(
    (setting for setting in SETTINGS.values() if setting.trial_order),
    key=lambda setting: setting.trial_order,
)

TRIED = tuple(setting for setting in _TRIED if not setting.is_expensive_to_try)
"""Settings that `cputrain tune` tries one at a time, those with the largest effect first."""

TRIED_LAST = tuple(setting for setting in _TRIED if setting.is_expensive_to_try)
"""Settings that it tries on top of the best of the others."""


def lowers_precision(values: dict[str, str]) -> bool:
    """Return whether any of these values, as typed, lowers the precision."""
    return any(
        setting.lowers_precision and values.get(name, setting.plain) != setting.plain
        for name, setting in SETTINGS.items()
    )
