"""Flushing denormals to zero: not exact, and therefore off unless the user says on.

Arithmetic on denormals can be 50 times slower (pytorch#21734), and weights that decay or moments of
vanishing gradients become denormal. Flushing them changes results, though: `-log(softmax(x))` at 92
becomes inf, Python's own `5e-324 > 0` becomes False, and NumPy warns. `cputrain diagnose` tells
where denormals cost time. The setting belongs to a thread and is inherited by those it starts.
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="flush_denormals",
    takes="auto|on|off",
    help="treat numbers below 1.2e-38 as zero, which changes results (auto: off)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Off unless the user says on."""
    return switch(
        KNOB,
        request.setting(KNOB.name),
        change=Change.FLUSHED,
        on="denormals flushed to zero",
        off="denormals kept",
        reason="results would change: the logarithm of a probability of 1e-40 becomes -inf",
    )
