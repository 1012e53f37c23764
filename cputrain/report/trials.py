"""Progress of a search: a live table on a terminal, else a line for each trial."""

from __future__ import annotations

import sys
from math import inf

from cputrain.report.figures import duration
from cputrain.tune.result import settings_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console, RenderableType
    from rich.table import Table

    from cputrain.tune.result import Trial

HEAD = ("stage", "settings", "step", "speed", "")
"""Headings of the table of trials."""

NUM_OTHER_LINES = 7
"""Terminal lines that are not rows: header, borders, and the status line."""


def cells(trial: Trial) -> tuple[str, str, str, str, str]:
    """Return a trial's cells in the table."""
    return (
        trial.stage,
        settings_text(trial.settings),
        "–" if trial.seconds is None else f"{trial.seconds * 1e3:.3g} ms",
        "" if trial.speedup is None else f"{trial.speedup:.2f}×",
        trial.says if trial.good else f"rejected: {trial.says}",
    )


class Lines:
    """Progress as one line of stderr for each completed trial."""

    def __init__(self) -> None:
        self._is_started = False

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trial_started(
        self,
        stage: str,  # noqa: ARG002
        settings: dict[str, str] | None,  # noqa: ARG002
        remaining_s: float,
    ) -> None:
        """Print how long the search takes before its first trial."""
        if self._is_started:
            return
        self._is_started = True
        limit = "without a time limit" if remaining_s == inf else f"for {duration(remaining_s)}"
        print(
            f"cputrain: plans are tried {limit}; Ctrl-C keeps the best so far",
            file=sys.stderr,
            flush=True,
        )

    def trial_ended(self, trial: Trial) -> None:
        """Print the line of a completed trial."""
        stage, settings, step, speed, verdict = cells(trial)
        print(
            f"{stage:<9}{settings:<40}{step:>10}  {speed:>6}  {verdict}".rstrip(),
            file=sys.stderr,
            flush=True,
        )


class Live:
    """Progress as a live table, with the running trial and the remaining time below."""

    def __init__(self, out: Console) -> None:
        from rich.live import Live as Display

        self._rows: list[tuple[str, ...]] = []
        self._good: list[bool] = []
        self._now = ""
        self._end = 0.0
        self._out = out
        self._display = Display(
            console=out, get_renderable=self._rendered, refresh_per_second=2, transient=False
        )

    def __enter__(self) -> Live:
        self._display.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._now = ""
        self._display.stop()

    def trial_started(
        self, stage: str, settings: dict[str, str] | None, remaining_s: float
    ) -> None:
        """Show the trial that starts, and the remaining time."""
        import time

        self._now = f"{stage}: {settings_text(settings)}"
        self._end = time.monotonic() + remaining_s
        self._display.refresh()

    def trial_ended(self, trial: Trial) -> None:
        """Add the row of a completed trial."""
        self._rows.append(cells(trial))
        self._good.append(trial.good)
        self._display.refresh()

    def _rendered(self) -> RenderableType:
        import time

        from rich.console import Group
        from rich.text import Text

        # rows that do not fit on the screen are shown when the search ends
        max_rows = max(1, self._out.height - NUM_OTHER_LINES) if self._now else len(self._rows)
        table = _table(self._rows[-max_rows:], self._good[-max_rows:])
        if not self._now:
            return table
        left_s = self._end - time.monotonic()
        remaining = f"{left_s:.0f} s left" if left_s > 0 else "about to end"
        if left_s == float("inf"):
            remaining = "no time limit"
        note = Text(f"{self._now} …  {remaining}; Ctrl-C keeps the best so far", style="dim")
        return Group(table, note)


def _table(rows: Sequence[tuple[str, ...]], good: Sequence[bool]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for name in HEAD:
        table.add_column(name, justify="right" if name in HEAD[2:4] else "left", overflow="fold")
    for row, is_good in zip(rows, good, strict=True):
        table.add_row(*map(Text, row), style=None if is_good else "red")
    return table


def watcher() -> Lines | Live:
    """Return a live table if stderr is a terminal, else lines."""
    from cputrain.report.terminal import console

    if not sys.stderr.isatty():
        return Lines()
    return Live(console(sys.stderr, aside=True))
