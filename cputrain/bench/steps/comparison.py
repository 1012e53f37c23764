"""Time the steps of every network in subprocesses, and summarise the results."""

from __future__ import annotations

import sys
from statistics import median

from cputrain.bench.selection import run_steps, select_names
from cputrain.bench.steps.cases import CASES, WAYS, ways_of
from cputrain.measure.comparison import package_versions
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class StepTimes(Record):
    """Steps of one network, taken in one way with one number of threads."""

    way: str
    """Key of `WAYS`."""

    num_threads: int
    """Number of threads."""

    seconds: float
    """Median time of a step in seconds."""

    speedup: Speedup
    """Speed-up over eager steps; median and range of the per-round ratios."""

    compile_seconds: float
    """Time of the first steps, which compile, in seconds."""

    loss_difference: float
    """Largest relative difference of the first losses from those of eager steps."""


class StepResult(Record):
    """Times of one network."""

    name: str
    """Key of `CASES`."""

    title: str
    """Heading of the table."""

    times: tuple[StepTimes, ...]


class StepComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    threads: tuple[int, ...]
    """Numbers of threads."""

    rounds: int
    """Number of interleaved rounds."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[StepResult, ...]
    """Result of each network."""


def compare_steps(
    names: Sequence[str] = (),
    *,
    threads: Sequence[int] = (1,),
    rounds: int = 9,
    quick: bool = False,
    jax: str = "",
) -> StepComparison:
    """Time steps of the named networks, by default all, and print progress on stderr.

    Args:
        names: Keys of `CASES`.
        threads: Numbers of threads.
        rounds: Number of rounds.
        quick: Whether to leave out what compiles.
        jax: An interpreter that has JAX and Optax, to compare with.

    Raises:
        NotFound: There is no such network.
        CputrainError: A subprocess failed or timed out.
    """
    results = []
    for name in select_names(names, CASES, "network"):
        times: list[StepTimes] = []
        ways = ways_of(name, quick=quick, has_jax=bool(jax))
        for num_threads in threads:
            request = {
                "name": name, "num_threads": num_threads, "rounds": rounds, "ways": ways, "jax": jax
            }  # fmt: skip
            document = run_steps("cputrain.bench.steps", request)
            times += summarise(document, num_threads)
            best = max(times[-len(ways) :], key=lambda each: each.speedup.median)
            print(
                f"{CASES[name]}, threads: {num_threads}: {WAYS[best.way]} is "
                f"{best.speedup.median:.2f} times as fast as eager",
                file=sys.stderr,
            )
        results.append(StepResult(name=name, title=CASES[name], times=tuple(times)))
    return StepComparison(
        threads=tuple(threads), rounds=rounds, versions=package_versions(), cases=tuple(results)
    )


def summarise(document: dict[str, Any], num_threads: int) -> list[StepTimes]:
    """Compute the statistics of each way from its step times in all rounds."""
    seconds: dict[str, list[float]] = document["seconds"]
    eager = next(iter(seconds.values()))
    return [
        StepTimes(
            way=way,
            num_threads=num_threads,
            seconds=median(values),
            speedup=speedup_by_round(eager, values),
            compile_seconds=document["compile_seconds"][way],
            loss_difference=document["loss_differences"][way],
        )
        for way, values in seconds.items()
    ]
