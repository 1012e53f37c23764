"""Progress of a queue of jobs: a live table on a terminal, else a line for each job that ends."""

from __future__ import annotations

import sys

from cputrain.counting import counted
from cputrain.many.job import JobState
from cputrain.report.figures import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType

    from cputrain.many.job import Job, Outcome
    from cputrain.many.snapshot import QueueSnapshot, RunningJob

HEAD = ("job", "cores", "steps", "steps/s", "loss", "memory", "time", "left")
"""Headings of the table of running jobs."""

NUM_OTHER_LINES = 8
"""Terminal lines that are not rows of jobs."""

VERBS = {JobState.DONE: "done", JobState.FAILED: "failed", JobState.WAITING: "stopped"}


def cells(job: RunningJob) -> tuple[str, ...]:
    """Return a running job's cells in the table."""
    return (
        job.name,
        str(job.cores),
        f"{job.steps:,}" if job.steps else "–",
        "–" if job.steps_per_s is None else f"{job.steps_per_s:.3g}",
        f"{job.loss:.4g}" if isinstance(job.loss, int | float) else "–",
        f"{job.memory_bytes / 2**30:.2f} GiB" if job.memory_bytes else "–",
        duration(job.elapsed_s),
        "–" if job.left_s is None else duration(job.left_s),
    )


def end_line(job: Job, outcome: Outcome, state: JobState) -> str:
    """Return the line for a job whose process has ended."""
    facts = [duration(outcome.elapsed_s), counted(outcome.cores, "core")]
    if outcome.is_success:
        facts += [f"{name} {_value(value)}" for name, value in outcome.result.items()][:4]
    else:
        facts.append(outcome.reason or f"exit code {outcome.exit_code}")
        if outcome.error and not outcome.reason:
            facts.append(outcome.error)
    if state is JobState.WAITING:
        facts.append("it is started again later")
    return f"{VERBS[state]:<8}{job.name}: {', '.join(facts)}"


def _value(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def counts_text(snapshot: QueueSnapshot) -> str:
    """Return how many jobs are in each state, and the time left."""
    counts = [f"{number} {state}" for state, number in snapshot.counts.items() if number]
    left = "" if snapshot.left_s is None else f"; about {duration(snapshot.left_s)} left"
    hint = (
        "; stopping, Ctrl-C again kills them"
        if snapshot.is_stopping
        else "; Ctrl-C stops, the same command continues"
    )
    return f"{', '.join(counts)} after {duration(snapshot.elapsed_s)}{left}{hint}"


class JobLines:
    """Progress as one line of stderr for each job that ends."""

    is_live = False

    def __enter__(self) -> JobLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, snapshot: QueueSnapshot) -> None:
        """Show nothing: only ends are printed."""

    def ended(self, job: Job, outcome: Outcome, state: JobState) -> None:
        """Print the line of a job whose process has ended."""
        print(end_line(job, outcome, state), file=sys.stderr, flush=True)


class JobTable:
    """Progress as a live table of running jobs, below the lines of those that have ended."""

    is_live = True

    def __init__(self, out: Console) -> None:
        from rich.live import Live

        self._snapshot: QueueSnapshot | None = None
        self._out = out
        self._display = Live(
            console=out, get_renderable=self._rendered, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> JobTable:
        self._display.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._snapshot = None
        self._display.stop()

    def update(self, snapshot: QueueSnapshot) -> None:
        """Show the state of the queue at the next refresh."""
        self._snapshot = snapshot

    def ended(self, job: Job, outcome: Outcome, state: JobState) -> None:
        """Print the line of a job whose process has ended, above the table."""
        from rich.text import Text

        style = None if outcome.is_success else "red"
        self._display.console.print(Text(end_line(job, outcome, state), style=style or ""))

    def _rendered(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        snapshot = self._snapshot
        if snapshot is None:
            return Text("")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        for name in HEAD:
            table.add_column(name, justify="left" if name == "job" else "right", no_wrap=True)
        max_rows = max(1, self._out.height - NUM_OTHER_LINES)
        for job in snapshot.running[:max_rows]:
            table.add_row(*map(Text, cells(job)))
        hidden = len(snapshot.running) - max_rows
        more = [Text(f"and {counted(hidden, 'job')} more", style="dim")] if hidden > 0 else []
        return Group(table, *more, Text(counts_text(snapshot), style="dim"))


def job_watcher() -> JobLines | JobTable:
    """Return a live table if stderr is a terminal, else lines."""
    from cputrain.report.terminal import console

    if not sys.stderr.isatty():
        return JobLines()
    return JobTable(console(sys.stderr, aside=True))
