"""Setting `gradient_exchange`: all-reduce of ranks on one node in shared memory, or by gloo."""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="gradient_exchange",
    takes="auto|shared|torch",
    help="how ranks of one node add up gradients (auto: in shared memory, where that is faster)",
    choices=("auto", "shared", "torch"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return the user's method; by default both are timed in the first steps of a run."""
    asked = request.setting(KNOB.name)
    linux = machine.system == "linux"
    if asked is None:
        return _decision("auto") if linux else _decision("torch", "shared memory needs Linux")
    return _decision(asked.value, f"{asked.where} says so").replace(origin=Origin.USER)


SAYS = {
    "auto": "ranks add up gradients in shared memory where faster",
    "shared": "ranks add up gradients in shared memory",
    "torch": "gradients as torch exchanges them",
}


def _decision(value: str, reason: str = "gloo copies each gradient through sockets") -> Decision:
    return Decision(
        policy=KNOB.name,
        value=value,
        says=SAYS[value],
        reason=reason,
        change=Change.NONE if value == "torch" else Change.EXACT,
        rejected={"shared": reason} if value == "torch" else {"torch": reason},
    )
