"""Progress of a search as a table in a notebook."""

from __future__ import annotations

from cputrain.report.html import trials_html
from cputrain.tune.result import settings_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.tune.result import Trial


class ProgressTable:
    """Table of trials below the cell, updated after each; cleared when the search succeeds.

    The value of the cell, which has the same table, is then displayed in its place.
    """

    def __init__(self) -> None:
        self._trials: list[Trial] = []
        self._display: Any = None

    def __enter__(self) -> ProgressTable:
        from IPython.display import HTML, display

        self._display = display(HTML(trials_html(())), display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._update("")
        if kind is None:
            from IPython.display import clear_output

            clear_output(wait=True)

    def trial_started(
        self, stage: str, settings: dict[str, str] | None, remaining_s: float
    ) -> None:
        """Show the running trial and the remaining time."""
        self._update(
            f"{stage}: {settings_text(settings)} … {remaining_s:.0f} s left; interrupting keeps "
            "the best"
        )

    def trial_ended(self, trial: Trial) -> None:
        """Add a row; it is displayed when the next trial starts."""
        self._trials.append(trial)

    def _update(self, status: str) -> None:
        from IPython.display import HTML

        self._display.update(HTML(trials_html(self._trials, status)))
