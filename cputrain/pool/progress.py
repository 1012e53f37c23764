"""A bar on standard error: how much has been done, how fast, and for how long it will go on."""

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
    """One bar, shown when the first part has been done."""

    def __init__(self, name: str, total: int | None, *, shown: bool = True) -> None:
        self._name = name
        self._total = total
        self._shown = shown
        self._progress: Progress | None = None
        self._task: Any = None
        self._closed = False

    def __enter__(self) -> Bar:
        return self  # what is shown before the block would stay if an interrupt came between

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def advance(self, count: int) -> None:
        """So many more have been done."""
        if self._closed:
            return
        if self._progress is None:
            self._show()
        if self._progress is not None:
            with self._unseen():
                self._progress.advance(self._task, count)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._closed = True
        if self._progress is not None:
            with deferred_signals(), self._unseen():
                self._progress.stop()

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Where nobody reads standard error, work goes on without a bar."""
        try:
            yield
        except (OSError, ValueError):
            self._closed = True

    def _show(self) -> None:
        if not self._shown or sys.stderr is None:
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
            """How many in a second."""

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
        with deferred_signals(), self._unseen():
            self._progress.start()
