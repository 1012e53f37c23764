"""Run process pools interleaved, each in a fresh subprocess, and summarise each case."""

from __future__ import annotations

import sys
from statistics import median

from cputrain.bench.pools.cases import CASES, cases
from cputrain.bench.pools.contenders import CONTENDERS, NO_POOL, OURS
from cputrain.errors import CputrainError, UsageError
from cputrain.measure.child import CaseFailedError, run_case
from cputrain.measure.comparison import TimedSide, package_versions, timings
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.pools.cases import PoolCase


class PoolSide(TimedSide):
    """One pool in one case: cputrain, torch, mpire, …, or "no pool"."""

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
    """Run the named groups of cases, by default all, and print progress on stderr.

    Args:
        groups: Keys of `CASES`.
        rounds: Number of rounds.
        processes: Worker processes of each pool; by default the number of physical cores.
        quick: Whether to run small cases, without meaningful timings.

    Raises:
        UsageError: There is no group of that name.
        CputrainError: cputrain's pool failed.
    """
    for group in groups:
        if group not in CASES:
            raise UsageError("--cases", f"must be out of {', '.join(CASES)}", found=repr(group))
    if processes is None:
        from cputrain.machine import read_machine

        processes = read_machine(detail=False).budget.physical_cores
    results = [
        compare_case(case, rounds, processes, quick)
        for group in groups or CASES
        for case in cases(group, quick)
    ]
    return PoolComparison(
        rounds=rounds,
        processes=processes,
        quick=quick,
        versions=package_versions(
            *(pool.distribution for pool in CONTENDERS if pool.distribution and not pool.why_not())
        ),
        cases=tuple(results),
    )


def compare_case(case: PoolCase, rounds: int, processes: int, quick: bool) -> PoolCaseResult:
    """Run a case in all pools, interleaved (A B C, C B A, …).

    A pool that fails or times out is left out of this and all further rounds.

    Raises:
        CputrainError: cputrain's pool failed or timed out.
    """
    contenders = [contender for contender in CONTENDERS if contender.can_run(case)]
    left_out = {
        contender.name: reason for contender in contenders if (reason := contender.why_not())
    }
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for round_index, contender in interleaved(contenders, rounds):
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
                    f"cputrain's pool in {case.name}", "must run the case", found=str(error)
                ) from error
            left_out[contender.name] = f"round {round_index + 1}: {error}"
            print(f"{case.name}: {contender.name}: {error}", file=sys.stderr)
            continue
        runs[contender.name].append(run)
        print(
            f"{case.name}: round {round_index + 1} of {rounds}, "
            f"{contender.name} {run['seconds']:.3g} s",
            file=sys.stderr,
        )
    completed = {name: pool_runs for name, pool_runs in runs.items() if name not in left_out}
    return summarise(case.name, case.title, completed, left_out)


def summarise(
    name: str,
    title: str,
    runs: dict[str, list[dict[str, Any]]],
    left_out: dict[str, str],
) -> PoolCaseResult:
    """Compute a case's statistics from each pool's runs, which are in the order of rounds."""
    return PoolCaseResult(
        name=name,
        title=title,
        results=runs[OURS][0]["results"],
        sides=tuple(_side(pool_name, runs) for pool_name in runs),
        left_out=left_out,
    )


def _side(name: str, runs: dict[str, list[dict[str, Any]]]) -> PoolSide:
    seconds = {pool: tuple(run["seconds"] for run in pool_runs) for pool, pool_runs in runs.items()}
    side_seconds = seconds[name]
    other_pools = [pool for pool in runs if pool not in (name, NO_POOL)] if name != NO_POOL else []
    best_other = min(other_pools, key=lambda pool: median(seconds[pool]), default=None)
    cpu_times = [run["cpu_seconds"] for run in runs[name] if run["cpu_seconds"] is not None]
    return PoolSide(
        name=name,
        **timings(side_seconds),
        best_other=best_other,
        speedup=None if best_other is None else speedup_by_round(seconds[best_other], side_seconds),
        cpu_seconds=median(cpu_times) if cpu_times else None,
    )
