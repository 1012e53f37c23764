"""Setting `attention`: the kernel of scaled_dot_product_attention, and its precision.

Its backward in bf16 took five times as long as in float32, more than half of a small GPT's step:
all that autocast gained elsewhere.
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="attention",
    takes="auto|math|float32",
    help="attention by plain matmuls, or in float32 under autocast (auto: torch's choice)",
    choices=("auto", "math", "float32"),
)

SAYS = {
    "math": "attention by plain matmuls",
    "float32": "attention kept in float32",
}


def decide(machine: Machine, request: Request) -> Decision:
    """Return torch's default, unless the user or a measurement chose a kernel."""
    asked = request.setting(KNOB.name)
    if asked is None:
        return Decision(
            policy=KNOB.name,
            value=None,
            says="attention as torch does it",
            reason="which kernel is faster depends on the shapes: a matter of measuring",
            rejected={kind: f"not measured on this script; {KNOB.flag} {kind}" for kind in SAYS},
        )
    return Decision(
        policy=KNOB.name,
        value=asked.value,
        says=SAYS[asked.value],
        reason=f"{asked.where} says so",
        origin=Origin.USER,
        change=Change.EXACT,
    )
