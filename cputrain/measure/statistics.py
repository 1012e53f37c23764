"""Quantiles and speed-ups of timings, and differences of losses."""

from __future__ import annotations

import math
from statistics import median

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Speedup(Record):
    """Speed-up over the reference: median, minimum and maximum of the per-round ratios."""

    median: float
    lowest: float
    highest: float


def quantile(values: Iterable[float], fraction: float) -> float:
    """Return the quantile at `fraction` (0 to 1), linearly interpolated between neighbours.

    `statistics.quantiles` returns only quantiles of equal parts.
    """
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there is none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def summarize_ratios(ratios: Sequence[float]) -> Speedup:
    """Return the median and the range of speed-ups."""
    return Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios))


def speedup_by_round(reference_s: Sequence[float], seconds: Sequence[float]) -> Speedup:
    """Return the speed-up over a reference, from ratios within each round.

    Drift of the machine from round to round cancels in them.
    """
    return summarize_ratios([a / b for a, b in zip(reference_s, seconds, strict=True)])


def loss_difference(losses: Sequence[float], expected: Sequence[float]) -> float | None:
    """Return the largest |a - b| / max(|a|, |b|) over paired losses, between 0 and 2.

    NaN or infinity differs from a finite number by 2; NaN equals NaN. None if there are no pairs.
    """
    differences = [_difference(a, b) for a, b in zip(losses, expected, strict=False)]
    return max(differences, default=None)


def _difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / max(abs(a), abs(b))
    return difference if math.isfinite(difference) else 2.0
