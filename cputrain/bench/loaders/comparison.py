"""Compare data loaders: run them in a subprocess and summarise each case."""

from __future__ import annotations

import json
import subprocess
import sys

from cputrain.bench.compare import Speedup, median, quantile
from cputrain.bench.measurement import clean_environment
from cputrain.errors import CputrainError, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CASES = {
    "tensors": "rows of tensors in memory; batches of 64 and 256, 0 and 2 workers",
    "rows": "rows that are not collated: in memory, in process, in shared memory with 2 workers",
    "subset": "the first batch of a Subset of 900,000 rows",
    "pictures": "pictures made in Python by 2 workers and by none; CPU time too",
    "cached": "JPEG files: the epoch in which samples are kept, and one in which they are read",
    "objects": "a million Python objects in a list; the memory of a worker too",
    "start": "the first batch from 2 spawned workers that are given a long list",
}
"""Description of each group of cases."""

AGAINST = "torch"
SAMPLES_ALONE = "samples alone"


class LoaderSide(Record):
    """One loader in one case, over all rounds."""

    name: str
    """One of "torch", "cputrain", "spdl", "spdl threads", "by hand" and `SAMPLES_ALONE`."""

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


class CaseResult(Record):
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

    cases: tuple[CaseResult, ...]
    """Results, in the order of execution."""


def compare_loaders(
    groups: Sequence[str] = (), *, repeats: int = 5, quick: bool = False
) -> LoaderComparison:
    """Run the named groups of cases, by default all, with progress on stderr."""
    for group in groups:
        if group not in CASES:
            raise UsageError(
                "loaders", f"must be followed by cases out of {', '.join(CASES)}", found=repr(group)
            )
    request = {"repeats": repeats, "quick": quick, "groups": list(groups) or list(CASES)}
    # -P: a module in the working directory must not shadow an installed one
    command = [sys.executable, "-P", "-m", "cputrain.bench.loaders", json.dumps(request)]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, env=clean_environment(), text=True, check=False
    )
    if ended.returncode:
        raise CputrainError(
            "the process that runs the loaders",
            "must exit with code 0",
            found=str(ended.returncode),
            do="What it said stands above.",
        )
    said = json.loads(ended.stdout.splitlines()[-1])
    return LoaderComparison(
        repeats=repeats,
        quick=quick,
        versions=said["versions"],
        cases=tuple(summarise(case) for case in said["cases"]),
    )


def summarise(case: dict[str, Any]) -> CaseResult:
    """Compute a case's result from its runs."""
    of: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(case["runs"], key=lambda run: run["round_number"]):
        of.setdefault(run["contender"], []).append(run)
    names = [name for name in ORDER if name in of]
    return CaseResult(
        name=case["name"],
        title=case["title"],
        timed=case["timed"],
        batches=of[AGAINST][0]["batches"],
        sides=tuple(
            _side(name, of, case["timed"], case["memory"].get(name, (None, None))) for name in names
        ),
        left_out=case["left_out"],
    )


ORDER = (AGAINST, "cputrain", "spdl", "spdl threads", "by hand", SAMPLES_ALONE)
"""Order of loaders in tables."""


def _side(
    name: str,
    of: dict[str, list[dict[str, Any]]],
    timed: str,
    memory: Sequence[int | None],
) -> LoaderSide:
    runs, reference, alone = of[name], of[AGAINST], of.get(SAMPLES_ALONE)
    seconds = tuple(run["seconds"] for run in runs)
    ratios = [other["seconds"] / run["seconds"] for run, other in zip(runs, reference, strict=True)]
    counted = runs[0]["cpu_seconds"] is not None
    beyond = None
    if alone is not None and name != SAMPLES_ALONE:
        beyond = median(
            run["cpu_seconds"] - least["cpu_seconds"]
            for run, least in zip(runs, alone, strict=True)
        )
    middle = median(seconds)
    return LoaderSide(
        name=name,
        seconds=seconds,
        median=middle,
        fastest=min(seconds),
        slowest=max(seconds),
        quartiles=(quantile(seconds, 0.25), quantile(seconds, 0.75)),
        batches_per_second=runs[0]["batches"] / middle if timed != "first batch" else None,
        speedup=None
        if name == SAMPLES_ALONE
        else Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios)),
        cpu_seconds=median(run["cpu_seconds"] for run in runs) if counted else None,
        cpu_seconds_beyond_samples=beyond,
        worker_bytes=memory[0],
        empty_worker_bytes=memory[1],
    )
