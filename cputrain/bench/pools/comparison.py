"""Compare process pools: run them interleaved, each in a subprocess, and summarise each case."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from cputrain.bench.child import CaseFailedError, run_case
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
    """Name of the contender, such as "cputrain", "torch" or "mpire"; "no pool" for none."""

    seconds: tuple[float, ...]
    """Time of each round."""

    median: float
    """Median of `seconds`."""

    fastest: float
    """Minimum of `seconds`."""

    slowest: float
    """Maximum of `seconds`."""

    quartiles: tuple[float, float]
    """First and third quartile of `seconds`."""

    best_other: str | None
    """Pool with the smallest median besides this one; None if there is no other."""

    speedup: Speedup | None
    """Speed-up over `best_other`, from the per-round ratios; None without a pool."""

    cpu_seconds: float | None
    """User and system CPU time of the process and its workers, median; None for a start."""


class PoolCaseResult(Record):
    """Results of one case."""

    name: str
    """Name of the case: "tensors-kept"."""

    title: str
    """Description shown in the table's heading."""

    results: int
    """Number of results that each pool returned in each round."""

    sides: tuple[PoolSide, ...]
    """Pools that ran."""

    left_out: dict[str, str]
    """Reason by name for each pool that did not run or failed."""

    def side(self, name: str) -> PoolSide:
        """Return the side of the pool with the given name."""
        return next(side for side in self.sides if side.name == name)


class PoolComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    rounds: int
    """Number of rounds."""

    processes: int
    """Worker processes of each pool."""

    quick: bool
    """Whether the cases were too small for meaningful timings."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[PoolCaseResult, ...]
    """Results, in the order of execution."""


def compare_pools(
    groups: Sequence[str] = (),
    *,
    rounds: int = 5,
    processes: int | None = None,
    quick: bool = False,
) -> PoolComparison:
    """Run the named groups of cases, by default all, with progress on stderr."""
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
    """Run a case in all pools, interleaved: A B C, C B A, …

    A pool that fails or times out is left out; a failure of cputrain's pool raises CputrainError.
    """
    asked = [one for one in CONTENDERS if one.takes_part(case)]
    left_out = {one.name: reason for one in asked if (reason := one.why_not())}
    runs: dict[str, list[dict[str, Any]]] = {one.name: [] for one in asked}
    for number in range(1, rounds + 1):
        for contender in asked if number % 2 else reversed(asked):
            if contender.name in left_out:
                continue
            try:
                run = run_case(
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
    """Compute a case's result from the runs of each pool, which are in the order of rounds."""
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
    """Return the versions of Python and of the packages involved."""
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
