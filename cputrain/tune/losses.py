"""Compare the losses of a candidate with those of plain python.

How far losses may differ is measured on the script itself. Plain python runs a second time with
another number of threads and with noise of the size of rounding errors in its gradients. The
distance between both runs is what the order of additions changes in this script's losses; an exact
candidate may differ by a multiple of it. In chaotic training the distance grows from step to step,
so a candidate may be one step ahead of it; where it is large, only gross faults can be detected.
"""

from __future__ import annotations

from itertools import accumulate

from cputrain.counting import counted
from cputrain.measure.statistics import loss_difference
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_ALLOWED = 1e-4
"""Relative difference that is always allowed: float32 rounding reaches it within a few steps."""

EXACT_FACTOR = 50.0
"""Allowed difference of an exact candidate, as a multiple of that of the disturbed run."""

CHAOS_THRESHOLD = 0.004
"""Difference between runs of plain python above which training counts as chaotic."""

CHAOS_FACTOR = 10.0
"""Allowed difference in chaotic training, as a multiple of that of the disturbed run."""

MAX_ALLOWED = 1.9
"""Upper bound of the allowed difference: NaN and infinity differ by 2, and are always rejected."""

REDUCED_MEAN = 0.1
"""Allowed mean difference of a candidate with reduced precision, beyond that of chaos."""


class Reference(Record):
    """Losses of plain python, and how far losses of candidates may differ from them."""

    losses: tuple[float, ...]
    """Losses of the first run."""

    allowed: tuple[float, ...]
    """Allowed relative difference of each loss."""

    chaos: float
    """Mean relative difference between the runs of plain python."""


class LossVerdict(Record):
    """Result of comparing a candidate's losses with the reference."""

    good: bool
    """Whether the differences are within what is allowed."""

    max_difference: float | None
    """Largest relative difference; None if no loss could be compared."""

    num_compared: int
    """Number of compared losses."""

    says: str
    """The result in words."""


def make_reference(runs: Sequence[Sequence[float]]) -> Reference:
    """Compute the reference from the losses of one or more runs of plain python."""
    first, *repeats = runs
    count = min(map(len, runs))
    spread = [
        max((_difference(repeat[at], first[at]) for repeat in repeats), default=0.0)
        for at in range(count)
    ]
    # shifted by one step: a difference may appear one step earlier in another run
    farthest = list(accumulate(spread, max))
    ahead = farthest[1:] + farthest[-1:]
    return Reference(
        losses=tuple(first),
        allowed=tuple(map(_allowed, ahead)),
        chaos=sum(spread) / max(1, count),
    )


def _allowed(spread: float) -> float:
    if spread <= CHAOS_THRESHOLD:
        return max(MIN_ALLOWED, EXACT_FACTOR * spread)
    return min(MAX_ALLOWED, max(EXACT_FACTOR * CHAOS_THRESHOLD, CHAOS_FACTOR * spread))


def _difference(loss: float, expected: float) -> float:
    return loss_difference([loss], [expected]) or 0.0


def compare_losses(
    reference: Reference, losses: Sequence[float], *, reduced: bool = False
) -> LossVerdict:
    """Compare a candidate's losses with those of plain python.

    Args:
        reference: Losses of plain python, and the allowed differences.
        losses: The candidate's losses, from the first step on.
        reduced: Whether the candidate has reduced precision, for which the mean is limited alone.
    """
    count = min(len(reference.allowed), len(losses))
    if count == 0:
        return LossVerdict(
            good=not reduced,
            max_difference=None,
            num_compared=0,
            says="there are no losses to compare",
        )
    differences = [_difference(losses[at], reference.losses[at]) for at in range(count)]
    max_difference = max(differences)
    if reduced:
        mean = sum(differences) / count
        max_mean = REDUCED_MEAN + reference.chaos
        good = mean <= max_mean
        fault = (
            f"losses differ from plain python's by {mean:.2g} in the mean; "
            f"{max_mean:.2g} is allowed"
        )
    else:
        over = [at for at in range(count) if differences[at] > reference.allowed[at]]
        good = not over
        at = over[0] if over else count - 1
        fault = (
            f"loss {at + 1} differs from plain python's by {differences[at]:.2g}; "
            f"{reference.allowed[at]:.1g} is allowed"
        )
    if good:
        return LossVerdict(
            good=True, max_difference=max_difference, num_compared=count,
            says=f"{counted(count, 'loss', 'losses')} within {max_difference:.1g} of plain "
            "python's",
        )  # fmt: skip
    return LossVerdict(
        good=False,
        max_difference=max_difference,
        num_compared=count,
        says=fault,
    )
