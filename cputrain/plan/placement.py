"""Setting `placement`: the CPU mask of the process; threads are never pinned one by one.

OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY pin the thread that imports torch to one core,
and every loader worker forked from it stays there (pytorch#49971, #101850, #149422). A mask that is
set before the interpreter starts has no such fault.
"""

from __future__ import annotations

from cputrain.machine import format_list
from cputrain.plan.cores import asked_cpus, share_of
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Cpus, Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="placement",
    takes="auto|none|cores|CPUS",
    help="CPUs to run on (cores: one for each fast core; or a list such as 0-7,16)",
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return a CPU mask if ranks share the machine or the user set one, else no mask."""
    share = share_of(machine, request)
    asked = request.setting(KNOB.name)
    one_each = tuple(core[0] for core in share.fast)
    if machine.limits.affinity is None and machine.system != "linux":
        why = "this platform has no affinity masks"
        if asked is None or asked.value == "none":
            return _unplaced(why, {})
        return _unplaced(why, {}).replace(
            warning=f"{asked.where} has no effect: {why}; leave it out"
        )
    if asked is not None and asked.value == "none":
        return _unplaced(f"{asked.where} says so", {}).replace(origin=Origin.USER)
    if asked is not None and asked.value == "cores":
        return _placed(one_each, f"{asked.where}: one CPU for each fast core", Origin.USER)
    cpus = asked_cpus(machine, request)
    if asked is not None and cpus is not None:
        return _placed(cpus, f"{asked.where} says so", Origin.USER)
    if share.divided:
        return _placed(share.cpus, share.reason, Origin.RULE)
    return _unplaced(
        "the process has its budget to itself, and the scheduler moves a thread off a busy core "
        "where a narrower mask would make it wait",
        {
            "cores": "not measured to be faster here; --placement cores gives "
            + format_list(one_each)
        },
    )


def _placed(cpus: Cpus, reason: str, origin: Origin) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=list(cpus),
        says=f"CPUs {format_list(cpus)}",
        reason=reason,
        origin=origin,
        change=Change.EXACT,
    )


def _unplaced(reason: str, rejected: dict[str, str]) -> Decision:
    return Decision(
        policy=KNOB.name, value=None, says="no narrower mask", reason=reason, rejected=rejected
    )
