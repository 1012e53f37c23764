"""Setting `compile`: torch.compile on every model of the script.

Compilation takes from seconds to minutes; compiled models are faster in some cases and slower in
others (measured: 90 s for a ResNet-50, whose steps then took 1.3 times as long).
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="compile",
    takes="auto|on|off",
    help="torch.compile every model (auto: off, unless measured)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return off, unless the user or a measurement turns it on."""
    return switch(
        KNOB,
        request.setting(KNOB.name),
        change=Change.EXACT,
        on="models compiled",
        off="models as the script compiles them",
        reason="compiling takes a while, and pays for some models only: a matter of measuring",
    )
