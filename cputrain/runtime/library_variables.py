"""Sets the variables that libraries read while torch is loaded, and takes them away again.

Children see the environment that they would have under python: what steers a library of this
process is no business of theirs.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AT_PROCESS_START = frozenset({"LD_PRELOAD"})
"""What the dynamic linker reads: the launcher sets it, and sitecustomize takes it away."""

READ_LATER_PREFIX = "ZENDNNL_"
"""ZenDNN reads its variables when a kernel is first used, so they stay."""

_set_for_loading: dict[str, str] = {}
_were_set: set[str] = set()


def set_variables(variables: Mapping[str, str]) -> None:
    """Set what the plan asks for before torch is loaded; what the user has set stays."""
    for name, value in variables.items():
        if name not in AT_PROCESS_START and name not in os.environ:
            os.environ[name] = value
            _were_set.add(name)
            if not name.startswith(READ_LATER_PREFIX):
                _set_for_loading[name] = value


def was_set(name: str) -> bool:
    """Return whether a library of this process could read our value of a variable."""
    return name in _were_set


def remove_variables() -> None:
    """Remove them once torch is loaded, where they still have our value."""
    for name, value in _set_for_loading.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _set_for_loading.clear()
