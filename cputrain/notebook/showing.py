"""A search while it goes on, in a notebook."""

from __future__ import annotations

from cputrain.report.html import trials_html
from cputrain.tune.found import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.tune.found import Trial


class Showing:
    """The table under the cell; what the cell returns takes its place."""

    def __init__(self) -> None:
        self._trials: list[Trial] = []
        self._place: Any = None

    def __enter__(self) -> Showing:
        from IPython.display import HTML, display

        self._place = display(HTML(trials_html(())), display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._show("")
        if kind is None:
            from IPython.display import clear_output

            clear_output(wait=True)

    def begins(self, stage: str, settings: dict[str, str] | None, left: float) -> None:
        """What runs now."""
        self._show(f"{stage}: {shown(settings)} … {left:.0f} s left; interrupting keeps the best")

    def ended(self, trial: Trial) -> None:
        """One more row."""
        self._trials.append(trial)

    def _show(self, now: str) -> None:
        from IPython.display import HTML

        self._place.update(HTML(trials_html(self._trials, now)))
