"""Compare commands by interleaved runs, each in a fresh process.

Rounds go A B, B A, A B, …, so that throttling or warm-up of the machine affects all commands alike.
Speed-ups are ratios within a round, never across rounds, so drift cancels.
"""

from __future__ import annotations

from statistics import median

from cputrain.bench.measurement import Measurement, measure
from cputrain.diagnose.step_roof import StepRoof
from cputrain.errors import UsageError
from cputrain.measure.comparison import TimedSide, timings
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import (
    Speedup,
    loss_difference,
    median_known,
    speedup_by_round,
)
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    Clock = Literal["steps", "process"]
    OnRun = Callable[[str, int, float], None]


class Side(TimedSide):
    """Statistics of one command over all its runs.

    `seconds` are median steps, or times of whole processes: see `ScriptComparison.clock`.
    """

    command: tuple[str, ...]
    """Argument list of the process."""

    samples_per_second: float | None
    """Throughput at the median; None unless the script reports step times and batch size."""

    speedup: Speedup
    """Speed-up over the reference; 1 for the reference itself."""

    loss_difference: float | None
    """Largest relative difference between losses of any run and the reference's first run.

    For the reference itself this is its run-to-run difference. None if no losses can be compared.
    """

    losses_compared: int
    """Number of losses of each run that were compared."""

    user_seconds: float | None
    """CPU time in user mode, children included; median over runs."""

    system_seconds: float | None
    """CPU time in kernel mode, children included; median over runs."""

    minor_faults: int | None
    """Minor page faults; median over runs."""

    major_faults: int | None
    """Major page faults, which read from disk; median over runs."""

    peak_rss_bytes: int | None
    """Peak resident set size of the process without its children; maximum over runs."""

    peak_tree_bytes: int | None
    """Peak memory of the process and its children; maximum over runs, None if not sampled."""


class ScriptComparison(Record):
    """Result of a comparison; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    against: str
    """Name of the reference command."""

    clock: Clock
    """Time compared: "steps" if every script reports its step times, else the whole "process"."""

    repeats: int
    """Number of complete rounds; fewer than asked for if the comparison was interrupted."""

    sides: tuple[Side, ...]
    """Compared commands, in the caller's order."""

    measurements: tuple[Measurement, ...]
    """All runs, in the order of their execution."""

    roof: StepRoof | None = None
    """Least time of a step on this machine; None if it was not measured."""

    def side(self, name: str) -> Side:
        """Return the side with the given name."""
        return next(side for side in self.sides if side.name == name)

    def last_report(self, name: str) -> str:
        """Return the settings that cputrain reported as applied in a command's last run."""
        return [run.said for run in self.measurements if run.name == name][-1]


def compare(
    commands: Mapping[str, Sequence[str]],
    *,
    repeats: int = 5,
    against: str | None = None,
    samples_memory: bool = False,
    on_run: OnRun | None = None,
) -> ScriptComparison:
    """Run every command `repeats` times and compare each with the reference.

    KeyboardInterrupt ends it with the rounds that are complete, if there is one.

    Args:
        commands: Argument lists by name.
        repeats: Number of rounds.
        against: Name of the reference; the first command by default.
        samples_memory: Whether to sample the memory of all processes of a run.
        on_run: Called as `on_run(name, round, seconds)` after each run, with its median step time
            if the script reports step times, else the time of the whole process.

    Raises:
        UsageError: There is no command, `repeats` is below 1, or `against` is not in `commands`.
        NotFound: A command does not exist.
        NotExecutable: A command cannot be executed.
    """
    names = list(commands)
    if not names:
        raise UsageError("commands", "must name at least one command", found="none")
    if repeats < 1:
        raise UsageError("repeats", "must be 1 or more", found=str(repeats))
    reference = names[0] if against is None else against
    if reference not in commands:
        choices = ", ".join(names)
        raise UsageError(
            "against",
            "must be one of the commands",
            found=repr(reference),
            do=f"Choose: {choices}.",
        )
    runs: list[Measurement] = []
    try:
        for round_index, name in interleaved(names, repeats):
            number = round_index + 1
            run = measure(name, commands[name], round_number=number, samples_memory=samples_memory)
            runs.append(run)
            if on_run is not None:
                on_run(name, number, run_seconds(run, "steps" if run.step_seconds else "process"))
    except KeyboardInterrupt:
        runs = runs[: len(runs) // len(names) * len(names)]
        if not runs:
            raise
    return summarise(commands, runs, reference)


def summarise(
    commands: Mapping[str, Sequence[str]], runs: Sequence[Measurement], against: str
) -> ScriptComparison:
    """Compute the statistics of each command from all its runs, with `against` as reference."""
    clock: Clock = "steps" if all(run.step_seconds for run in runs) else "process"
    runs_by_name = {
        name: sorted((run for run in runs if run.name == name), key=lambda run: run.round_number)
        for name in commands
    }
    reference = runs_by_name[against]
    return ScriptComparison(
        against=against,
        clock=clock,
        repeats=len(reference),
        sides=tuple(
            _side(name, command, runs_by_name[name], reference, clock)
            for name, command in commands.items()
        ),
        measurements=tuple(runs),
    )


def run_seconds(run: Measurement, clock: Clock) -> float:
    """Return a run's time by the given clock: its median step time, or its process time."""
    return median(run.step_seconds) if clock == "steps" else run.process_seconds


def _side(
    name: str,
    command: Sequence[str],
    runs: Sequence[Measurement],
    reference: Sequence[Measurement],
    clock: Clock,
) -> Side:
    seconds = tuple(run_seconds(run, clock) for run in runs)
    first = reference[0]
    compared = [run for run in runs if run is not first]
    differences = [loss_difference(run.losses, first.losses) for run in compared]
    samples = runs[0].samples_per_step
    return Side(
        name=name,
        command=tuple(command),
        **timings(seconds),
        samples_per_second=samples / median(seconds) if samples and clock == "steps" else None,
        speedup=speedup_by_round([run_seconds(run, clock) for run in reference], seconds),
        loss_difference=max((value for value in differences if value is not None), default=None),
        losses_compared=min(
            (min(len(run.losses), len(first.losses)) for run in compared), default=0
        ),
        user_seconds=median_known(run.user_seconds for run in runs),
        system_seconds=median_known(run.system_seconds for run in runs),
        minor_faults=_rounded(median_known(run.minor_faults for run in runs)),
        major_faults=_rounded(median_known(run.major_faults for run in runs)),
        peak_rss_bytes=max(
            (run.peak_rss_bytes for run in runs if run.peak_rss_bytes), default=None
        ),
        peak_tree_bytes=max(
            (run.peak_tree_bytes for run in runs if run.peak_tree_bytes), default=None
        ),
    )


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
