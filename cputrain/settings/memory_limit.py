"""Setting `memory_limit`: the most memory that a training process takes, with the same results."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.quantities import parse_size
from cputrain.settings.core.exclusion import check_not_excluded
from cputrain.settings.core.setting import MEMORY, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied

MIB = 1 << 20

KERNEL_BYTES = 32 * MIB
"""What the kernel itself takes of a container's memory for a process, as page tables."""


class MemoryLimitSetting(Setting[int | None]):
    """Most memory of each process, in bytes; None sets no limit."""

    name = "memory_limit"
    excluded_by = frozenset({"reproducible"})
    order = 75
    group = MEMORY
    takes = "SIZE|auto"
    help = "most memory of each process: 8G, auto or none"
    rule = "a number of bytes, or null"
    plain = "none"

    def decide(self, machine: Machine, request: Request) -> Decision[int | None]:
        """Return the limit that the user set; none by default."""
        user = request.settings.get(self.name)
        if user is None or user.value == "none":
            return self.decision(None, "no memory limit", "a step takes what it needs", user=user)
        check_not_excluded(self, machine, request, user)
        if machine.libc is None:
            raise UsageError(
                user.where,
                "needs Linux with glibc, whose malloc gives back free memory",
                found=machine.system,
                do=f"Leave out {user.where}.",
            )
        if user.value != "auto":
            limit_bytes = parse_size(user.value, user.where)
        elif machine.budget.memory_bytes is None:
            return self.decision(None, "no memory limit", "the size of memory is unknown")
        else:
            num_processes = 1 if request.rank is None else request.rank.count
            share_bytes = machine.budget.memory_bytes // num_processes
            limit_bytes = max(MIB, share_bytes - KERNEL_BYTES)
        return self.decision(limit_bytes, f"at most {limit_bytes / MIB:,.0f} MiB", user=user)

    def load(self, document: Any) -> int | None:
        """Return the limit that a saved plan holds."""
        if document is not None and (type(document) is not int or document < 1):
            raise ValueError(document)
        return document

    def apply(self, torch: ModuleType, value: int | None) -> Applied | None:
        """Have calls of models and modules go through the limiter."""
        if value is None:
            return None
        from cputrain.runtime.memory_limit import MemoryLimit

        return MemoryLimit(torch, value)


SETTING = MemoryLimitSetting()
