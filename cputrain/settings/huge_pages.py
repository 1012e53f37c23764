"""Setting `huge_pages`: transparent huge pages (2 MiB) for the heap, for 1/512 of page faults."""

from __future__ import annotations

from cputrain.settings import allocator
from cputrain.settings.core.decision import Decision, Origin
from cputrain.settings.core.setting import MEMORY, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation

TUNABLE = "glibc.malloc.hugetlb"


class HugePagesSetting(Switch):
    """Whether the kept heap asks the kernel for huge pages."""

    name = "huge_pages"
    excluded_by = frozenset({"memory_limit"})
    order = 80
    group = MEMORY
    is_advanced = True
    help = "huge pages for the heap (auto: where the kernel leaves it to programs)"
    trial_order = 80

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on if the allocator keeps freed memory and the kernel grants huge pages."""
        user = request.setting(self.name)
        mode = machine.memory.huge_pages
        if user is not None and user.value == "off":
            return self._off(user.reason, Origin.USER)
        if TUNABLE in request.environment.get("GLIBC_TUNABLES", ""):
            return self._off(f"GLIBC_TUNABLES already sets {TUNABLE}, and is kept", Origin.USER)
        kept = allocator.SETTING.decide(machine, request).value
        if not isinstance(kept, allocator.KeepFreed):
            why_not = "the allocator is left as it is, and only memory that it keeps is worth them"
        elif mode == "always":
            why_not = "the kernel gives them to everybody (transparent_hugepage is always)"
        elif mode != "madvise":
            why_not = "the kernel grants none (transparent_hugepage is never, or absent)"
        else:
            return self.decision(
                True,
                "huge pages",
                "the kernel grants them to programs that ask (transparent_hugepage is madvise)",
                origin=Origin.RULE if user is None else Origin.USER,
                rejected={"off": f"small pages fault 500 times as often; {self.flag} off"},
            )
        decision = self._off(why_not)
        if user is not None:
            warning = f"{user.where} on has no effect: {why_not}; leave it out"
            return decision.replace(warning=warning)
        return decision

    def _off(self, reason: str, origin: Origin = Origin.RULE) -> Decision[bool]:
        return self.decision(
            False, "pages as they are", reason, origin=origin, rejected={"on": reason}
        )

    def candidates(self, situation: Situation) -> list[str]:
        """Return off, if the rule-based plan has huge pages."""
        return ["off"] if situation.values[self.name] else []

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Request huge pages, if memory is kept."""
        from cputrain.runtime.kept_memory import HugePages, KeptMemory
        from cputrain.runtime.state import NOW

        kept_memory = NOW.applied.get(allocator.SETTING.name)
        return HugePages(kept_memory) if value and isinstance(kept_memory, KeptMemory) else None


SETTING = HugePagesSetting()
