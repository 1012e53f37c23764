"""The one line after a run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.runtime.apply import Applied


def summary(applied: Iterable[Applied]) -> str:
    """Return what holds when the script ends, as each transform tells it."""
    said = [text for transform in applied if (text := transform.describe())]
    return f"cputrain: {', '.join(said) or 'nothing was changed'}"
