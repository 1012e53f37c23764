"""The same work done in two or more ways: interleaved, each run in a fresh process.

Rounds go A B, B A, A B, …: a machine that slows down or warms up meanwhile touches both alike.
Speed is compared within a round, never across, so drift cancels.
"""

from __future__ import annotations

import math

from cputrain.bench.measurement import Measurement, measure
from cputrain.errors import UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Literal

    Clock = Literal["steps", "process"]
    OnRun = Callable[[str, int, float], None]


class Speedup(Record):
    """How many times faster than the reference: the median of the rounds' ratios, and its ends."""

    median: float
    lowest: float
    highest: float


class Side(Record):
    """One of the compared commands, over all its runs."""

    name: str
    """What the caller calls it: "python", "launch"."""

    command: tuple[str, ...]
    """The argument list it was started with."""

    seconds: tuple[float, ...]
    """One value a round: the median step, or the whole process (see Comparison.clock)."""

    median: float
    """The median of `seconds`."""

    fastest: float
    """The least of `seconds`."""

    slowest: float
    """The greatest of `seconds`."""

    quartiles: tuple[float, float]
    """The first and third quartile of `seconds`."""

    samples_per_second: float | None
    """At the median; None unless the script timed its steps and said how much one handles."""

    speedup: Speedup
    """Against the reference; 1 for the reference itself."""

    loss_difference: float | None
    """The largest relative difference of a loss in any of its runs from the reference's first run.

    For the reference itself this is how well it repeats. None where there is nothing to compare.
    """

    losses_compared: int
    """How many losses of each run could be compared."""

    user_seconds: float | None
    """CPU time in its own code, children included: the median run."""

    system_seconds: float | None
    """CPU time in the kernel, children included: the median run."""

    minor_faults: int | None
    """Pages handed out: the median run."""

    major_faults: int | None
    """Pages read from disk: the median run."""

    peak_rss_bytes: int | None
    """Largest resident memory of the process itself: the greatest of the runs."""

    peak_tree_bytes: int | None
    """Largest memory of the process and its children: the greatest of the runs, if sampled."""


class Comparison(Record):
    """Everything a comparison found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    against: str
    """The name of the reference."""

    clock: Clock
    """Whose time is compared: "steps" as every script reported them, else the whole "process"."""

    repeats: int
    """How many rounds there were."""

    sides: tuple[Side, ...]
    """The compared commands, in the caller's order."""

    measurements: tuple[Measurement, ...]
    """Every run, in the order in which they ran."""

    def side(self, name: str) -> Side:
        """The side of that name."""
        return next(side for side in self.sides if side.name == name)

    def last_words(self, name: str) -> str:
        """What cputrain said it had applied, in the last run of that name."""
        return [run.said for run in self.measurements if run.name == name][-1]


def compare(
    commands: Mapping[str, Sequence[str]],
    *,
    repeats: int = 5,
    against: str | None = None,
    samples_memory: bool = False,
    on_run: OnRun | None = None,
) -> Comparison:
    """Runs every command `repeats` times and compares each with `against`, by default the first.

    `on_run(name, round, seconds)` is told of each run when it has ended: its median step where
    the script timed its steps, else the time of the whole process.
    """
    names = list(commands)
    if not names:
        raise UsageError("commands", "must name at least one command", found="none")
    if repeats < 1:
        raise UsageError("repeats", "must be 1 or more", found=str(repeats))
    reference = names[0] if against is None else against
    if reference not in commands:
        known = ", ".join(names)
        raise UsageError(
            "against", "must be one of the commands", found=repr(reference), do=f"Choose: {known}."
        )
    runs = []
    for number in range(1, repeats + 1):
        for name in names if number % 2 else reversed(names):
            run = measure(name, commands[name], round_number=number, samples_memory=samples_memory)
            runs.append(run)
            if on_run is not None:
                on_run(name, number, seconds_of(run, "steps" if run.step_seconds else "process"))
    return summarise(commands, runs, reference)


def summarise(
    commands: Mapping[str, Sequence[str]], runs: Sequence[Measurement], against: str
) -> Comparison:
    """The comparison that a list of measurements amounts to."""
    clock: Clock = "steps" if all(run.step_seconds for run in runs) else "process"
    of = {
        name: sorted((run for run in runs if run.name == name), key=lambda run: run.round_number)
        for name in commands
    }
    reference = of[against]
    return Comparison(
        against=against,
        clock=clock,
        repeats=len(reference),
        sides=tuple(
            _side(name, command, of[name], reference, clock) for name, command in commands.items()
        ),
        measurements=tuple(runs),
    )


def seconds_of(run: Measurement, clock: Clock) -> float:
    """A run's time by that clock."""
    return median(run.step_seconds) if clock == "steps" else run.process_seconds


def loss_difference(losses: Sequence[float], expected: Sequence[float]) -> float | None:
    """The largest |a - b| / max(|a|, |b|) over the losses both have, from 0 to at most 2.

    A loss that is not a number differs by 2 from every number, and by 0 from another such.
    """
    differences = [_difference(loss, other) for loss, other in zip(losses, expected, strict=False)]
    return max(differences, default=None)


def quantile(values: Iterable[float], part: float) -> float:
    """The value below which that part of the values lies, straight between neighbours."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    """The value in the middle."""
    return quantile(values, 0.5)


def _side(
    name: str,
    command: Sequence[str],
    runs: Sequence[Measurement],
    reference: Sequence[Measurement],
    clock: Clock,
) -> Side:
    seconds = tuple(seconds_of(run, clock) for run in runs)
    ratios = [
        seconds_of(other, clock) / seconds_of(run, clock)
        for run, other in zip(runs, reference, strict=True)
    ]
    first = reference[0]
    others = [run for run in runs if run is not first]
    differences = [loss_difference(run.losses, first.losses) for run in others]
    samples = runs[0].samples_per_step
    middle = median(seconds)
    return Side(
        name=name,
        command=tuple(command),
        seconds=seconds,
        median=middle,
        fastest=min(seconds),
        slowest=max(seconds),
        quartiles=(quantile(seconds, 0.25), quantile(seconds, 0.75)),
        samples_per_second=samples / middle if samples and clock == "steps" else None,
        speedup=Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios)),
        loss_difference=max((found for found in differences if found is not None), default=None),
        losses_compared=min((min(len(run.losses), len(first.losses)) for run in others), default=0),
        user_seconds=_median_known(run.user_seconds for run in runs),
        system_seconds=_median_known(run.system_seconds for run in runs),
        minor_faults=_whole(_median_known(run.minor_faults for run in runs)),
        major_faults=_whole(_median_known(run.major_faults for run in runs)),
        peak_rss_bytes=max((r.peak_rss_bytes for r in runs if r.peak_rss_bytes), default=None),
        peak_tree_bytes=max((r.peak_tree_bytes for r in runs if r.peak_tree_bytes), default=None),
    )


def _difference(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    difference = abs(one - other) / max(abs(one), abs(other))
    return difference if math.isfinite(difference) else 2.0


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
