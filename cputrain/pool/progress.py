"""A progress bar on stderr: items done, rate, and time remaining."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cputrain.ipc import deferred_signals
from cputrain.report.terminal import console

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from rich.progress import Progress


class Bar:
    """A progress bar, shown once the first items are done."""

    def __init__(self, name: str, total: int | None, *, shown: bool = True) -> None:
        self._name = name
        self._total = total
        self._is_shown = shown
        self._progress: Progress | None = None
        self._task: Any = None
        self._is_closed = False

    def __enter__(self) -> Bar:
        return self  # a bar shown before the block would stay if an interrupt came before the block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def advance(self, count: int) -> None:
        """Add `count` items that are done."""
        if self._is_closed:
            return
        if self._progress is None:
            self._show()
        if self._progress is not None:
            with self._ignore_write_errors():
                self._progress.advance(self._task, count)

    def close(self) -> None:
        """Stop updating the bar and leave it on the screen."""
        self._is_closed = True
        if self._progress is not None:
            with deferred_signals(), self._ignore_write_errors():
                self._progress.stop()

    @contextmanager
    def _ignore_write_errors(self) -> Iterator[None]:
        """Close the bar, instead of raising, if stderr cannot be written to."""
        try:
            yield
        except (OSError, ValueError):
            self._is_closed = True

    def _show(self) -> None:
        """Create the bar and draw it, unless it is not to be shown."""
        if not self._is_shown or sys.stderr is None:
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            """Items per second."""

            def render(self, task: Any) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{speed:,.3g}/s")

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console(sys.stderr, aside=True),
        )
        self._task = self._progress.add_task(self._name, total=self._total)
        with deferred_signals(), self._ignore_write_errors():
            self._progress.start()
