"""Pools in turns, each in a fresh process, and what that found: cases, and each pool's figures."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from cputrain.bench.child import CaseFailedError, answer_of
from cputrain.bench.compare import Speedup, median, quantile
from cputrain.bench.pools.cases import CASES, cases
from cputrain.bench.pools.contenders import ALONE, CONTENDERS, OURS, Contender
from cputrain.errors import CputrainError, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cputrain.bench.pools.cases import Case


class PoolSide(Record):
    """One pool in one case, over all rounds."""

    name: str
    """ "cputrain", "torch", "futures", "joblib", "mpire", "mpire shared_objects" or "no pool"."""

    seconds: tuple[float, ...]
    """One value a round."""

    median: float
    """Of `seconds`."""

    fastest: float
    """The least of `seconds`."""

    slowest: float
    """The greatest of `seconds`."""

    quartiles: tuple[float, float]
    """The first and third quartile of `seconds`."""

    best_other: str | None
    """The pool with the least median besides this one; None where there is no other."""

    speedup: Speedup | None
    """Against that one: the median of the rounds' ratios, and its ends. None without a pool."""

    cpu_seconds: float | None
    """Of the process and its workers, user and system: the median round. None for a start."""


class PoolCaseResult(Record):
    """What one case found."""

    name: str
    """ "tensors-kept"."""

    title: str
    """What it is about."""

    results: int
    """That each pool returned in each round."""

    sides: tuple[PoolSide, ...]
    """Every pool that took part."""

    left_out: dict[str, str]
    """Every pool that did not, and why."""

    def side(self, name: str) -> PoolSide:
        """The pool of that name."""
        return next(side for side in self.sides if side.name == name)


class PoolComparison(Record):
    """Everything that was found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    rounds: int
    """How many there were."""

    processes: int
    """How many each pool had."""

    quick: bool
    """Whether there was too little to do to say anything about speed."""

    versions: dict[str, str]
    """Of Python and of the packages that took part."""

    cases: tuple[PoolCaseResult, ...]
    """In the order in which they ran."""


def compare_pools(
    groups: Sequence[str] = (),
    *,
    rounds: int = 5,
    processes: int | None = None,
    quick: bool = False,
) -> PoolComparison:
    """Runs the groups of cases named, by default all, and tells of each run on stderr."""
    for group in groups:
        if group not in CASES:
            raise UsageError("--cases", f"must be out of {', '.join(CASES)}", found=repr(group))
    if processes is None:
        from cputrain.machine import read_machine

        processes = read_machine(detail=False).budget.physical_cores
    found = [
        compared(case, rounds, processes, quick)
        for group in groups or CASES
        for case in cases(group, quick)
    ]
    return PoolComparison(
        rounds=rounds,
        processes=processes,
        quick=quick,
        versions=versions(),
        cases=tuple(found),
    )


def compared(case: Case, rounds: int, processes: int, quick: bool) -> PoolCaseResult:
    """A case's runs, in turns: A B C, C B A, …

    A pool that fails or hangs is left out; when it is ours, that ends the comparison.
    """
    asked = [one for one in CONTENDERS if one.takes_part(case)]
    left_out = {one.name: reason for one in asked if (reason := one.why_not())}
    runs: dict[str, list[dict[str, Any]]] = {one.name: [] for one in asked}
    for number in range(1, rounds + 1):
        for contender in asked if number % 2 else reversed(asked):
            if contender.name in left_out:
                continue
            try:
                run = answer_of(
                    "cputrain.bench.pools",
                    {
                        "case": case.name,
                        "contender": contender.name,
                        "processes": processes,
                        "quick": quick,
                    },
                )
            except CaseFailedError as error:
                if contender.name == OURS:
                    raise CputrainError(
                        f"cputrain's pool in {case.name}", "must do its work", found=str(error)
                    ) from error
                left_out[contender.name] = f"round {number}: {error}"
                print(f"{case.name}: {contender.name}: {error}", file=sys.stderr)
                continue
            runs[contender.name].append(run)
            print(
                f"{case.name}: round {number} of {rounds}, {contender.name} {run['seconds']:.3g} s",
                file=sys.stderr,
            )
    present = {name: done for name, done in runs.items() if name not in left_out}
    return summarise(case.name, case.title, present, left_out)


def summarise(
    name: str,
    title: str,
    runs: dict[str, list[dict[str, Any]]],
    left_out: dict[str, str],
) -> PoolCaseResult:
    """What the runs of a case amount to; each pool's stand in the order of the rounds."""
    return PoolCaseResult(
        name=name,
        title=title,
        results=runs[OURS][0]["results"],
        sides=tuple(_side(one, runs) for one in runs),
        left_out=left_out,
    )


def _side(name: str, runs: dict[str, list[dict[str, Any]]]) -> PoolSide:
    seconds = {one: tuple(run["seconds"] for run in done) for one, done in runs.items()}
    own = seconds[name]
    others = [one for one in runs if one not in (name, ALONE)] if name != ALONE else []
    best = min(others, key=lambda one: median(seconds[one]), default=None)
    ratios = [] if best is None else [a / b for a, b in zip(seconds[best], own, strict=True)]
    counted = [run["cpu_seconds"] for run in runs[name] if run["cpu_seconds"] is not None]
    return PoolSide(
        name=name,
        seconds=own,
        median=median(own),
        fastest=min(own),
        slowest=max(own),
        quartiles=(quantile(own, 0.25), quantile(own, 0.75)),
        best_other=best,
        speedup=Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios))
        if ratios
        else None,
        cpu_seconds=median(counted) if counted else None,
    )


def versions(contenders: Iterable[Contender] = CONTENDERS) -> dict[str, str]:
    """Of all that took part."""
    from cputrain import __version__

    found = {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "cputrain": __version__,
    }
    for contender in contenders:
        if contender.distribution and not contender.why_not():
            found[contender.distribution] = importlib.metadata.version(contender.distribution)
    return found
