"""Flushing numbers too small for full precision to zero.

Arithmetic on denormal numbers can be 50 times slower (pytorch#21734), and weights that decay or
moments of vanishing gradients reach them. Their size is below 1.2e-38 in float32. The setting
belongs to a thread and is inherited by those it starts, so it must be made before OpenMP's.
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="flush_denormals",
    takes="auto|on|off",
    help="treat numbers below 1.2e-38 as zero (auto: on)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """On unless the user says off; torch tells at run time whether the CPU can."""
    asked = request.setting(KNOB.name)
    on = asked is None or asked.value == "on"
    return Decision(
        policy=KNOB.name,
        value=on,
        says="denormals flushed to zero" if on else "denormals kept",
        reason="vanishing weights and moments would slow arithmetic by up to 50 times"
        if asked is None
        else f"{asked.where} says so",
        origin=Origin.RULE if asked is None else Origin.USER,
        change=Change.EXACT if on else Change.NONE,
        rejected={"off": f"nothing of size 1e-38 matters in training; {KNOB.flag} off keeps it"}
        if on
        else {"on": f"{asked.where if asked else ''} says off"},
    )
