"""Setting `fused_optimizer`: optimizer steps in one pass over memory instead of a dozen."""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="fused_optimizer",
    takes="auto|on|off",
    help="one-pass updates in Adam, AdamW, SGD and Adagrad (auto: on)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return on, unless the user turned it off; the run applies it where parameters allow."""
    asked = request.setting(KNOB.name)
    on = asked is None or asked.value == "on"
    return Decision(
        policy=KNOB.name,
        value=on,
        says="fused optimizers" if on else "optimizers as the script sets them",
        reason="one pass over parameters, gradients and moments instead of one for each operation"
        if asked is None
        else f"{asked.where} says so",
        origin=Origin.RULE if asked is None else Origin.USER,
        change=Change.EXACT if on else Change.NONE,
        rejected={
            "off": "on two threads they took between a quarter and all of the time of the others; "
            f"{KNOB.flag} off"
        }
        if on
        else {"on": f"{asked.where if asked else ''} says off"},
    )
