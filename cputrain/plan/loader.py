"""Setting `loader`: cputrain's DataLoader in place of torch's."""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="loader",
    takes="auto|on|off",
    help="cputrain's DataLoader in the place of torch's (auto: on, under Linux)",
    choices=("auto", "on", "off"),
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return on under Linux, unless the user turned it off."""
    asked = request.setting(KNOB.name)
    able = machine.system == "linux"
    on = able and (asked is None or asked.value == "on")
    if not able:
        reason = "shared memory by memfd_create needs Linux"
    elif asked is None:
        reason = (
            "the same batches in the same order; rows in memory are gathered in one call, and "
            "workers hand batches over in memory that is used again"
        )
    else:
        reason = f"{asked.where} says so"
    return Decision(
        policy=KNOB.name,
        value=on,
        says="cputrain's data loaders" if on else "data loaders as torch has them",
        reason=reason,
        origin=Origin.RULE if asked is None or not able else Origin.USER,
        change=Change.EXACT if on else Change.NONE,
        rejected={"off": f"measured slower; {KNOB.flag} off"} if on else {"on": reason},
    )
