"""Setting `flush_denormals`: flush-to-zero, off by default because it is not exact.

Arithmetic on denormals can be 50 times slower (pytorch#21734), and weights that decay or moments of
vanishing gradients become denormal. Flushing them changes results, though: `-log(softmax(x))` at 92
becomes inf, Python's own `5e-324 > 0` becomes False, and NumPy warns. `cputrain diagnose`
reports where denormals cost time. The mode belongs to a thread; threads that it starts inherit it.
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
    """Return off, unless the user turns it on."""
    return switch(
        KNOB,
        request.setting(KNOB.name),
        change=Change.FLUSHED,
        on="denormals flushed to zero",
        off="denormals kept",
        reason="results would change: the logarithm of a probability of 1e-40 becomes -inf",
    )
