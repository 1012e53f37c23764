"""Setting `loader_cores`: cores reserved for the workers of DataLoaders."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.machine import format_list
from cputrain.plan.cores import share_of, shortened
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="loader_cores",
    takes="N|auto|shared",
    help="cores kept for loader workers (auto: none, they share the cores with compute)",
)


def decide(machine: Machine, request: Request) -> Decision:
    """Return shared cores, unless the user reserved a number of them.

    Reserving 8 of 64 cores made a script with 8 busy workers 1.5 times as fast, and one with 2 idle
    workers a tenth slower: no rule can decide it without a measurement.
    """
    share = share_of(machine, request)
    asked = request.setting(KNOB.name)
    if asked is not None and asked.value != "shared":
        count = _parse(asked.value, asked.where, len(share.fast))
        kept = share.fast[-count:]
        return _kept(kept, f"{asked.where} says so", Origin.USER, compute=share.cores - count)
    if asked is not None:
        return _shared(f"{asked.where} says so", Origin.USER)
    return _shared(
        "the efficiency cores are left to them by compute, and the scheduler puts them there"
        if share.frugal
        else "the scheduler lends their cores to compute while they sleep; which share is best "
        "depends on the script",
        Origin.RULE,
    )


def _kept(
    cores: tuple[tuple[int, ...], ...], reason: str, origin: Origin, *, compute: int
) -> Decision:
    cpus = sorted(cpu for core in cores for cpu in core)
    return Decision(
        policy=KNOB.name,
        value={"cpus": cpus, "threads": 1, "compute_threads": max(1, compute)},
        says=f"loader workers on CPUs {format_list(cpus)}, one thread each",
        reason=reason,
        origin=origin,
        change=Change.EXACT,
        rejected={"shared": f"{reason}; {KNOB.flag} shared lets them run anywhere"},
    )


def _shared(reason: str, origin: Origin) -> Decision:
    return Decision(
        policy=KNOB.name,
        value={"cpus": None, "threads": 1, "compute_threads": None},
        says="loader workers share the cores, one thread each",
        reason=reason,
        origin=origin,
        change=Change.EXACT,
        rejected={"reserved": f"{reason}; {KNOB.flag} N keeps N cores for them"},
    )


def _parse(value: str, where: str, cores: int) -> int:
    digits = value.isascii() and value.isdigit() and len(value) < 7
    if not digits or not 1 <= int(value) < cores:
        raise UsageError(
            where,
            "must be auto, shared or a whole number that leaves at least one of the "
            f"{cores} cores to compute",
            found=shortened(value),
            do="Leave it out to share the cores.",
        )
    return int(value)
