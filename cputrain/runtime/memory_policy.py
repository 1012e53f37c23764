"""Report the NUMA memory policy that the launcher has set, as it is when the script ends."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "memory_policy"

GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "riscv64": 236, "ppc64le": 260, "s390x": 269}
"""The system call's number on each architecture; glibc has no function for it."""

MPOL_INTERLEAVE = 3
MODE_MASK = 0xFF
"""The bits of the mode; those above are flags."""


class InterleavedMemory:
    """The memory policy of this process, interleaved over nodes."""

    def __init__(self, nodes: list[int]) -> None:
        self._nodes = nodes

    def describe(self) -> str:
        if not _is_interleaved():  # refused by the kernel, or changed by the script
            return ""
        return f"memory interleaved over nodes {', '.join(map(str, self._nodes))}"

    def undo(self) -> None:
        raise RuntimeError("the memory policy was set before this process began")


def _is_interleaved() -> bool:
    number = GET_MEMPOLICY.get(os.uname().machine)
    mode = ctypes.c_int()
    if number is None:
        return False
    answer = ctypes.CDLL(None).syscall(number, ctypes.byref(mode), None, 0, None, 0)
    return bool(answer == 0 and mode.value & MODE_MASK == MPOL_INTERLEAVE)


def apply(torch: ModuleType, value: Any) -> InterleavedMemory | None:  # noqa: ARG001
    """Report the memory policy, if the plan interleaves memory."""
    return InterleavedMemory(value["interleave"]) if isinstance(value, dict) else None
