"""Setting `threads`: the number of intra-op threads."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.machine import threads_set_by_launcher
from cputrain.plan.cores import share_of, shortened
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="threads",
    takes="N|auto",
    help="threads that one operator uses (auto: the physical cores of the budget)",
)

VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables from which torch takes its threads; the first takes precedence."""


def decide(machine: Machine, request: Request) -> Decision:
    """Return the user's number, else the environment variable's, else the cores of the share."""
    share = share_of(machine, request)
    asked = request.setting(KNOB.name)
    if asked is not None:
        count = whole_number(asked.value, asked.where, most=len(machine.budget.cpus))
        return _decision(count, f"{asked.where} says so", Origin.USER, {}, "")
    for name in VARIABLES:
        found = request.environment.get(name, "").partition(",")[0].strip()
        if not (found.isascii() and found.isdigit() and len(found) < 7) or int(found) < 1:
            continue
        if name == "OMP_NUM_THREADS" and threads_set_by_launcher(request.environment):
            continue
        return _decision(
            int(found),
            f"{name}={found} was already set",
            Origin.USER,
            {str(share.cores): f"{name} is set; unset it, or say --threads {share.cores}"},
            _warn_of_many(int(found), machine),
        )
    logical = len(share.cpus)
    rejected = {}
    if logical > share.cores:
        rejected[str(logical)] = (
            "one thread for each logical CPU: two threads on one core share its arithmetic "
            f"units and wait for each other; --threads {logical} does it all the same"
        )
    if share.frugal:
        rejected["efficiency"] = (
            f"threads on the {len(share.frugal)} efficiency cores too: operators split their work "
            "evenly, so the fast cores would wait for the slow ones"
        )
    return _decision(share.cores, share.reason, Origin.RULE, rejected, "")


def thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which torch takes its number of threads, as far as they are set."""
    return {name: environment[name] for name in VARIABLES if name in environment}


def _decision(
    count: int, reason: str, origin: Origin, rejected: dict[str, str], warning: str
) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=count,
        says=f"{count} thread{'s' * (count != 1)}",
        reason=reason,
        origin=origin,
        change=Change.EXACT,
        rejected=rejected,
        warning=warning,
    )


def _warn_of_many(count: int, machine: Machine) -> str:
    if count <= len(machine.budget.cpus):
        return ""
    return (
        f"{count} threads are set for {len(machine.budget.cpus)} usable CPUs, so they take turns; "
        f"unset the variable, or say --threads {machine.budget.physical_cores}"
    )


def whole_number(value: str, where: str, *, most: int) -> int:
    """Parse a count from 1 to `most`.

    Raises:
        UsageError: The value is not such a number.
    """
    digits = value.isascii() and value.isdigit() and len(value) < 7
    if not digits or not 1 <= int(value) <= most:
        raise UsageError(
            where,
            f"must be auto or a whole number from 1 to {most}, the logical CPUs this process may "
            "use",
            found=shortened(value),
            do="Leave it out to get one for each physical core.",
        )
    return int(value)
