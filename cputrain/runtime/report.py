"""The report line at the end of a run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.runtime.apply import Applied


def summary(applied: Iterable[Applied]) -> str:
    """Return the report line: the changes in effect when the script ends."""
    texts = [text for transform in applied if (text := transform.describe())]
    return f"cputrain: {', '.join(texts) or 'nothing was changed'}"
