"""Setting `replicas`: data parallelism within the process, on threads of separate cores."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.plan.cores import share_of, shortened
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="replicas",
    takes="N|auto",
    help="replicas that divide each batch (auto: the fastest of the first steps; left out: 1)",
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return 1 replica, unless the user or a measurement set another number.

    Raises:
        UsageError: The number is invalid, or models are also to be compiled.
    """
    asked = request.settings.get(KNOB.name)  # "auto" differs from unset here
    if asked is None:
        return _decision(
            None, "how many pay depends on the script: a matter of measuring", Origin.RULE
        )
    share = share_of(machine, request)
    compiled = request.setting("compile")
    if asked.value != "1" and compiled is not None and compiled.value == "on":
        raise UsageError(
            asked.where, "does not go with compiled models", found=f"{compiled.where} on",
            do="Leave one of the two out.",
        )  # fmt: skip
    if asked.value == "auto":
        return _decision("auto", f"{asked.where} says so", Origin.USER)
    most = len(share.fast)
    if not (asked.value.isascii() and asked.value.isdigit()) or not 1 <= int(asked.value) <= most:
        raise UsageError(
            asked.where,
            f"must be auto or a whole number from 1 to the {most} cores there are",
            found=shortened(asked.value),
            do="Leave it out for one.",
        )
    origin = Origin.MEASURED if asked.measured else Origin.USER
    count = int(asked.value)
    return _decision(
        count if count > 1 else None, asked.measured or f"{asked.where} says so", origin
    )


def _decision(value: int | str | None, reason: str, origin: Origin) -> Decision:
    many = "as many replicas as are fastest" if value == "auto" else f"{value} replicas"
    says = "batches undivided" if value is None else f"batches divided among {many}"
    return Decision(
        policy=KNOB.name,
        value=value,
        says=says,
        reason=reason,
        origin=origin,
        change=Change.NONE if value is None else Change.EXACT,
        rejected={"more": f"{reason}; {KNOB.flag} N divides each batch among N replicas"}
        if value is None
        else {},
    )
