"""Setting `interop_threads`: the number of inter-op threads."""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin
from cputrain.plan.threads import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="interop_threads",
    takes="N|auto",
    help="operators that run side by side (auto: torch's own number)",
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return torch's default, unless the user set a number.

    Torch allows to set it once in a process, and the script may do so itself.
    """
    asked = request.setting(KNOB.name)
    if asked is None:
        return Decision(
            policy=KNOB.name,
            value=None,
            says="inter-operator threads as torch sets them",
            reason="only torch.jit.fork uses them, they are not started before, and a script that "
            "sets them itself would fail if they were set already",
            rejected={"1": "it would change nothing for a script that never forks operators"},
        )
    count = whole_number(asked.value, asked.where, most=len(machine.budget.cpus))
    return Decision(
        policy=KNOB.name,
        value=count,
        says=f"{count} inter-operator thread{'s' * (count != 1)}",
        reason=f"{asked.where} says so",
        origin=Origin.USER,
        change=Change.EXACT,
    )
