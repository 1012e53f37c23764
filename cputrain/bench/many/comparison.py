"""Run many trainings in several ways, interleaved, and summarise each case."""

from __future__ import annotations

import sys
from statistics import median

from cputrain.bench.many.cases import CASES, OURS, STEPS, WAYS
from cputrain.bench.selection import select_names
from cputrain.errors import CputrainError
from cputrain.measure.child import CaseFailedError, run_case
from cputrain.measure.comparison import TimedSide, package_versions, timings
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class ManySide(TimedSide):
    """One way to run the trainings of a case."""

    speedups: dict[str, Speedup]
    """Speed-up over each other way, from the ratios of rounds; empty for ways of others."""

    peak_bytes: int
    """Largest memory of all processes in any round."""

    median_bytes: int
    """Median memory of all processes while the trainings ran."""


class ManyCaseResult(Record):
    """Results of one case."""

    name: str
    """Name of the case: "mlp"."""

    title: str
    """Description shown in the table's heading."""

    steps: int
    """Steps of each training."""

    sides: tuple[ManySide, ...]
    """Ways that ran."""

    loss_difference: float
    """Largest relative difference of a training's loss from that of plain python."""

    left_out: dict[str, str]
    """Reason by name for each way that did not run."""


class ManyComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    num_jobs: int
    """Trainings in each case."""

    rounds: int
    """Number of rounds."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[ManyCaseResult, ...]
    """Results, in the order of execution."""


SLOWEST = 2.0
"""Multiple of the time of trainings one after another after which a way is given up."""


def compare_many(
    names: Sequence[str] = (),
    *,
    ways: Sequence[str] = (),
    num_jobs: int = 8,
    rounds: int = 3,
    quick: bool = False,
) -> ManyComparison:
    """Run the named cases, by default all, and print progress on stderr.

    Args:
        names: Keys of `CASES`.
        ways: Keys of `WAYS`, all by default; those one after another come first in any case.
        num_jobs: Trainings in each case.
        rounds: Number of rounds.
        quick: Whether to take few steps, without meaningful timings.

    Raises:
        NotFound: There is no such case.
        CputrainError: A way of this package, or plain python, failed.
    """
    ways = tuple(dict.fromkeys(("in turn", *select_names(ways, WAYS, "way"))))
    results = [
        compare_case(name, ways, 5 if quick else STEPS[name], num_jobs, rounds)
        for name in select_names(names, CASES, "case")
    ]
    return ManyComparison(
        num_jobs=num_jobs,
        rounds=rounds,
        versions=package_versions("joblib", "ray"),
        cases=tuple(results),
    )


def compare_case(
    name: str, ways: Sequence[str], steps: int, num_jobs: int, rounds: int
) -> ManyCaseResult:
    """Run a case in some ways, interleaved; one of others that fails or takes long is left out."""
    from importlib.util import find_spec

    left_out = {way: "it is not installed" for way in ("joblib", "ray") if find_spec(way) is None}
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways if way not in left_out}
    timeout_s = None
    for round_index, way in interleaved(list(runs), rounds):
        if way in left_out:
            continue
        request = {"way": way, "network": name, "jobs": num_jobs, "steps": steps}
        try:
            run = run_case("cputrain.bench.many", request, timeout_s=timeout_s)
        except CaseFailedError as error:
            if way in (*OURS, "in turn"):
                raise CputrainError(
                    f"{WAYS[way]} in {name}", "must run the case", found=str(error)
                ) from error
            left_out[way] = str(error)
            print(f"{name}: {way}: {error}", file=sys.stderr)
            continue
        runs[way].append(run)
        timeout_s = timeout_s or round(SLOWEST * run["seconds"] + 60)
        print(
            f"{name}: round {round_index + 1} of {rounds}, {way}: {run['seconds']:.3g} s",
            file=sys.stderr,
        )
    completed = {way: some for way, some in runs.items() if way not in left_out}
    return summarise(name, steps, completed, left_out)


def summarise(
    name: str, steps: int, runs: dict[str, list[dict[str, Any]]], left_out: dict[str, str]
) -> ManyCaseResult:
    """Compute a case's statistics from the runs of each way, in the order of rounds."""
    seconds = {way: [run["seconds"] for run in some] for way, some in runs.items()}
    expected = runs["in turn"][0]["losses"]
    return ManyCaseResult(
        name=name,
        title=CASES[name],
        steps=steps,
        sides=tuple(
            ManySide(
                name=way,
                **timings(seconds[way]),
                speedups={
                    rival: speedup_by_round(seconds[rival], seconds[way])
                    for rival in runs
                    if way in OURS and rival not in OURS
                },
                peak_bytes=max(run["peak_bytes"] for run in some),
                median_bytes=int(median(run["median_bytes"] for run in some)),
            )
            for way, some in runs.items()
        ),
        loss_difference=max(
            abs(loss - reference) / max(1e-12, abs(reference))
            for some in runs.values()
            for run in some
            for loss, reference in zip(run["losses"], expected, strict=True)
        ),
        left_out=left_out,
    )
