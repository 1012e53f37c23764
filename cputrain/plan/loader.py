"""Which cores feed and which compute: the budget shared with the workers of DataLoaders."""

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
    help="cores kept for loader workers (auto: efficiency cores, else shared with compute)",
)


def decide(machine: Machine, request: Request) -> Decision:
    """Efficiency cores where there are any; a number of fast cores when asked; else shared."""
    share = share_of(machine, request)
    asked = request.setting(KNOB.name)
    if asked is not None and asked.value != "shared":
        count = _parse(asked.value, asked.where, len(share.fast))
        kept = share.fast[-count:]
        return _kept(kept, f"{asked.where} says so", Origin.USER, compute=share.cores - count)
    if asked is not None:
        return _shared(f"{asked.where} says so", Origin.USER)
    if share.frugal:
        return _kept(
            share.frugal,
            "efficiency cores compute for nobody, and preparing samples suits them",
            Origin.RULE,
            compute=share.cores,
        )
    return _shared(
        "workers sleep most of the time, and the scheduler lends their cores to compute meanwhile",
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
