"""Setting `huge_pages`: transparent huge pages (2 MiB) for the heap, for 1/512 of page faults."""

from __future__ import annotations

from cputrain.plan import allocator
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="huge_pages",
    takes="auto|on|off",
    help="huge pages for the heap (auto: where the kernel leaves it to programs)",
    choices=("auto", "on", "off"),
)

TUNABLE = "glibc.malloc.hugetlb"


def decide(machine: Machine, request: Request) -> Decision:
    """Return on if the allocator keeps freed memory and the kernel grants huge pages by madvise."""
    asked = request.setting(KNOB.name)
    mode = machine.memory.huge_pages
    if asked is not None and asked.value == "off":
        return _off(f"{asked.where} says so", Origin.USER)
    if TUNABLE in request.environment.get("GLIBC_TUNABLES", ""):
        return _off(f"GLIBC_TUNABLES already sets {TUNABLE}, and is kept", Origin.USER)
    if not isinstance(allocator.decide(machine, request).value, dict):
        why_not = "the allocator is left as it is, and only memory that it keeps is worth them"
    elif mode == "always":
        why_not = "the kernel gives them to everybody (transparent_hugepage is always)"
    elif mode != "madvise":
        why_not = "the kernel grants none (transparent_hugepage is never, or absent)"
    else:
        return Decision(
            policy=KNOB.name,
            value=True,
            says="huge pages",
            reason="the kernel grants them to programs that ask (transparent_hugepage is madvise)",
            origin=Origin.RULE if asked is None else Origin.USER,
            change=Change.EXACT,
            rejected={"off": f"small pages fault 500 times as often; {KNOB.flag} off"},
        )
    decision = _off(why_not, Origin.RULE)
    if asked is not None:
        return decision.replace(warning=f"{asked.where} on has no effect: {why_not}; leave it out")
    return decision


def _off(reason: str, origin: Origin) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=False,
        says="pages as they are",
        reason=reason,
        origin=origin,
        rejected={"on": reason},
    )
