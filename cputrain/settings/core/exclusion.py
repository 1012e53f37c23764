"""Settings that have no effect beside another one."""

from __future__ import annotations

from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request, UserValue
    from cputrain.settings.core.setting import Setting


def is_excluded(setting: Setting[Any], values: Mapping[str, Any]) -> bool:
    """Return whether a setting has no effect beside the values of a plan."""
    return any(values.get(name) is not None for name in setting.excluded_by)


def check_not_excluded(
    setting: Setting[Any], machine: Machine, request: Request, user: UserValue
) -> None:
    """Raise UsageError if the user has also set another setting that this one excludes.

    Args:
        setting: The setting that is decided.
        machine: The machine.
        request: All values of the user.
        user: The user's value of the setting.
    """
    from cputrain.settings.core.registry import SETTINGS

    for name, value in request.settings.items():
        excluded = SETTINGS.get(name)
        if excluded is None or setting.name not in excluded.excluded_by or value.measured:
            continue
        if value.value != excluded.plain and excluded.has_effect(excluded.decide(machine, request)):
            raise UsageError(
                user.where,
                f"must be set without {excluded.flag}",
                found=f"{value.where} {value.value}",
                do=f"Leave out {value.where}, or {user.where}.",
            )
