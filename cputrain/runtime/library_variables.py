"""Set the environment variables that libraries read while torch is loaded, then remove them.

Child processes get the environment that they would have under python.
"""

from __future__ import annotations

import os

from cputrain.variables import AT_PROCESS_START

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

READ_LATER = ("ZENDNNL_", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""Begins of the variables that are read when a kernel is first used: they stay set."""

_set_for_loading: dict[str, str] = {}
_were_set: set[str] = set()


def set_variables(variables: Mapping[str, str]) -> None:
    """Set the plan's variables before torch is loaded, unless the user has set them."""
    for name, value in variables.items():
        if name not in AT_PROCESS_START and name not in os.environ:
            os.environ[name] = value
            _were_set.add(name)
            if not name.startswith(READ_LATER):
                _set_for_loading[name] = value


def was_set(name: str) -> bool:
    """Return whether `set_variables` has set a variable in this process."""
    return name in _were_set


def remove_variables() -> None:
    """Remove the variables once torch is loaded, if their values are unchanged."""
    for name, value in _set_for_loading.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _set_for_loading.clear()
