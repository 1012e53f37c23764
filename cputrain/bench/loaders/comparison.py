"""Compare data loaders: run them in a subprocess and summarise each case."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from cputrain.errors import CputrainError, UsageError
from cputrain.measure.child import clean_environment
from cputrain.measure.comparison import TimedSide, timings
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CASES = {
    "tensors": "rows of tensors in memory; batches of 64 and 256, 0 and 2 workers",
    "rows": "rows that are not collated: in memory, created in the process, in shared memory",
    "subset": "the first batch of a Subset of 900,000 rows",
    "pictures": "images created in Python, with 2 workers and without; CPU time as well",
    "cached": "JPEG files: the epoch that fills the cache, and one that reads the cache",
    "objects": "a list of a million Python objects; memory of a worker as well",
    "start": "the first batch from 2 spawned workers, with a long list in the dataset",
}
"""Description of each group of cases."""

REFERENCE = "torch"
"""Loader that speed-ups refer to."""

SAMPLES_ALONE = "samples alone"
"""Name of the side that creates the samples without a loader."""


class LoaderSide(TimedSide):
    """One loader in one case: torch, cputrain, spdl, spdl threads, by hand or `SAMPLES_ALONE`."""

    batches_per_second: float | None
    """Throughput at the median; None if only the first batch is timed."""

    speedup: Speedup | None
    """Speed-up over torch's loader, from the per-round ratios; None for samples alone."""

    cpu_seconds: float | None
    """User and system CPU time of all processes; median over rounds."""

    cpu_seconds_beyond_samples: float | None
    """CPU overhead over the samples alone in the same round; median of the differences."""

    worker_bytes: int | None
    """Private memory of the largest worker at the end of an epoch; None if not measured."""

    empty_worker_bytes: int | None
    """Private memory of a worker whose dataset stores no samples; None if not measured."""


class LoaderCaseResult(Record):
    """Results of one case."""

    name: str
    """Name of the case: "tensors-64-0"."""

    title: str
    """Description shown in the table's heading."""

    timed: str
    """Interval that was timed: "epoch", "second epoch" or "first batch"."""

    batches: int
    """Number of batches that each loader yielded in each round."""

    sides: tuple[LoaderSide, ...]
    """Loaders that ran."""

    left_out: dict[str, str]
    """Reason by name for each loader that did not run."""

    def side(self, name: str) -> LoaderSide:
        """Return the side of the loader with the given name."""
        return next(side for side in self.sides if side.name == name)


class LoaderComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    repeats: int
    """Number of rounds."""

    quick: bool
    """Whether the datasets were too small for meaningful timings."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[LoaderCaseResult, ...]
    """Results, in the order of execution."""


def compare_loaders(
    groups: Sequence[str] = (), *, repeats: int = 5, quick: bool = False
) -> LoaderComparison:
    """Run the named groups of cases, by default all, and print progress on stderr.

    Raises:
        UsageError: There is no group of that name.
        CputrainError: The subprocess failed, or a loader yielded other batches than torch's.
    """
    for group in groups:
        if group not in CASES:
            raise UsageError(
                "loaders", f"must be followed by names out of {', '.join(CASES)}", found=repr(group)
            )
    request = {"repeats": repeats, "quick": quick, "groups": list(groups) or list(CASES)}
    # -P: a module in the working directory must not shadow an installed one
    command = [sys.executable, "-P", "-m", "cputrain.bench.loaders", json.dumps(request)]
    process = subprocess.run(
        command, stdout=subprocess.PIPE, env=clean_environment(), text=True, check=False
    )
    if process.returncode:
        raise CputrainError(
            "the process that runs the loaders",
            "must exit with code 0",
            found=str(process.returncode),
            do="Its error output is above.",
        )
    answer = json.loads(process.stdout.splitlines()[-1])
    return LoaderComparison(
        repeats=repeats,
        quick=quick,
        versions=answer["versions"],
        cases=tuple(summarise(case) for case in answer["cases"]),
    )


def summarise(case: dict[str, Any]) -> LoaderCaseResult:
    """Compute a case's statistics from its runs, with torch's loader as reference."""
    runs_by_name: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(case["runs"], key=lambda run: run["round_number"]):
        runs_by_name.setdefault(run["contender"], []).append(run)
    names = [name for name in ORDER if name in runs_by_name]
    return LoaderCaseResult(
        name=case["name"],
        title=case["title"],
        timed=case["timed"],
        batches=runs_by_name[REFERENCE][0]["batches"],
        sides=tuple(
            _side(name, runs_by_name, case["timed"], case["memory"].get(name, (None, None)))
            for name in names
        ),
        left_out=case["left_out"],
    )


ORDER = (REFERENCE, "cputrain", "spdl", "spdl threads", "by hand", SAMPLES_ALONE)
"""Order of loaders in tables."""


def _side(
    name: str,
    runs_by_name: dict[str, list[dict[str, Any]]],
    timed: str,
    memory: Sequence[int | None],
) -> LoaderSide:
    runs, reference, samples_alone = (
        runs_by_name[name], runs_by_name[REFERENCE], runs_by_name.get(SAMPLES_ALONE)
    )  # fmt: skip
    seconds = tuple(run["seconds"] for run in runs)
    has_cpu_time = runs[0]["cpu_seconds"] is not None
    cpu_overhead_s = None
    if samples_alone is not None and name != SAMPLES_ALONE:
        cpu_overhead_s = median(
            run["cpu_seconds"] - samples_run["cpu_seconds"]
            for run, samples_run in zip(runs, samples_alone, strict=True)
        )
    return LoaderSide(
        name=name,
        **timings(seconds),
        batches_per_second=runs[0]["batches"] / median(seconds) if timed != "first batch" else None,
        speedup=None
        if name == SAMPLES_ALONE
        else speedup_by_round([run["seconds"] for run in reference], seconds),
        cpu_seconds=median(run["cpu_seconds"] for run in runs) if has_cpu_time else None,
        cpu_seconds_beyond_samples=cpu_overhead_s,
        worker_bytes=memory[0],
        empty_worker_bytes=memory[1],
    )
