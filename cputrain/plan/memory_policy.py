"""Setting `memory_policy`: NUMA nodes of new pages, on machines with several nodes."""

from __future__ import annotations

from cputrain.plan.cores import share_of
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="memory_policy",
    takes="auto|local|interleave",
    help="where pages go when the budget spans memory nodes",
    choices=("auto", "local", "interleave"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return interleaving if one process computes on several nodes, else first touch."""
    cpus = frozenset(share_of(machine, request).cpus)
    nodes = [node.id for node in machine.nodes if cpus & frozenset(node.cpus)]
    asked = request.setting(KNOB.name)
    if asked is not None and asked.value == "interleave" and len(nodes) > 1:
        return _interleave(nodes, f"{asked.where} says so").replace(origin=Origin.USER)
    if asked is not None:
        return _local(f"{asked.where} says so", {}).replace(
            origin=Origin.USER,
            warning=""
            if asked.value == "local"
            else f"{asked.where} interleave has no effect: the CPUs of this process sit on one "
            "memory node; leave it out",
        )
    if len(nodes) < 2:
        return _local("the CPUs of this process sit beside one memory node", {})
    if machine.gpu_driver:
        return _local(
            "a GPU driver is loaded, and interleaved staging buffers slow transfers to it",
            {
                "interleave": f"{machine.gpu_driver} is loaded; say {KNOB.flag} interleave if the "
                "script trains on the CPU alone"
            },
        )
    return _interleave(
        nodes,
        f"its CPUs sit on {len(nodes)} nodes, and parameters that one thread touched first would "
        "all be read from that thread's node",
    )


def _interleave(nodes: list[int], reason: str) -> Decision:
    return Decision(
        policy=KNOB.name,
        value={"interleave": nodes},
        says=f"memory interleaved over nodes {', '.join(map(str, nodes))}",
        reason=reason,
        change=Change.EXACT,
        rejected={
            "local": "all cores would queue for one node's memory channels; "
            f"{KNOB.flag} local keeps first touch"
        },
    )


def _local(reason: str, rejected: dict[str, str]) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=None,
        says="memory from the nearest node",
        reason=reason,
        rejected=rejected or {"interleave": reason},
    )
