"""Report the CPU mask that the launcher has set, as it is when the script ends."""

from __future__ import annotations

import os

from cputrain.machine.cpulist import format_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "placement"


class Placement:
    """Report of this process's CPU mask."""

    def describe(self) -> str:
        return f"CPUs {format_list(tuple(sorted(os.sched_getaffinity(0))))}"

    def undo(self) -> None:
        raise RuntimeError("the mask was set before this process began")


def apply(torch: ModuleType, value: object) -> Placement | None:  # noqa: ARG001
    """Report the CPU mask, if the plan has one."""
    return Placement() if value is not None and hasattr(os, "sched_getaffinity") else None
