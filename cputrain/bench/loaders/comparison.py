"""What a comparison of loaders found: its cases, and each loader's figures in them."""

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
"""The groups of cases, and what each is about."""

AGAINST = "torch"
SAMPLES_ALONE = "samples alone"


class LoaderSide(Record):
    """One loader in one case, over all rounds."""

    name: str
    """ "torch", "cputrain", "spdl", "spdl threads", "by hand", or "samples alone"."""

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

    batches_per_second: float | None
    """At the median; None where only a first batch is timed."""

    speedup: Speedup | None
    """Against torch's loader: the median of the rounds' ratios. None for samples alone."""

    cpu_seconds: float | None
    """Of all processes, user and system: the median round."""

    cpu_seconds_beyond_samples: float | None
    """Less what the samples alone cost in the same round: the median of the differences."""

    worker_bytes: int | None
    """That the largest worker has for itself at the end of an epoch; None if not measured."""

    empty_worker_bytes: int | None
    """The same of a worker whose dataset holds nothing."""


class CaseResult(Record):
    """What one case found."""

    name: str
    """ "tensors-64-0"."""

    title: str
    """What it is about."""

    timed: str
    """ "epoch", "second epoch" or "first batch"."""

    batches: int
    """That each loader handed out in each round."""

    sides: tuple[LoaderSide, ...]
    """Every loader that took part."""

    left_out: dict[str, str]
    """Every loader that did not, and why."""

    def side(self, name: str) -> LoaderSide:
        """The loader of that name."""
        return next(side for side in self.sides if side.name == name)


class LoaderComparison(Record):
    """Everything that was found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    repeats: int
    """How many rounds there were."""

    quick: bool
    """Whether the data was too small to say anything about speed."""

    versions: dict[str, str]
    """Of Python and of the packages that took part."""

    cases: tuple[CaseResult, ...]
    """In the order in which they ran."""


def compare_loaders(
    groups: Sequence[str] = (), *, repeats: int = 5, quick: bool = False
) -> LoaderComparison:
    """Runs the groups of cases named, by default all, and tells of each run on stderr."""
    for group in groups:
        if group not in CASES:
            raise UsageError(
                "loaders", f"must be followed by cases out of {', '.join(CASES)}", found=repr(group)
            )
    request = {"repeats": repeats, "quick": quick, "groups": list(groups) or list(CASES)}
    # -P: the working folder must not put a module of its own in the way
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
    """What the runs of a case amount to."""
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
"""In which loaders are shown."""


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
