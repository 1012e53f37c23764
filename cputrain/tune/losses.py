"""Whether a candidate learns as plain python does.

A second run of plain python has another number of threads, and its gradients are disturbed by as
much as rounding does. How far its losses are from those of the first is what the order of additions
does to this script; a candidate that is exact may be some times as far. Where training is chaotic
the distance grows from step to step, so a candidate may be a step ahead; and from where it is large
only gross faults are found.
"""

from __future__ import annotations

from itertools import accumulate

from cputrain.bench.compare import loss_difference
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 1e-4
"""A relative difference that float32 makes in any script within a few steps."""

TIMES = 50.0
"""How many times as far as the disturbed run an exact candidate may be away."""

CHAOS = 0.004
"""Where plain python differs from itself by more, it is not for rounding alone to say how far."""

TIMES_IN_CHAOS = 10.0
"""How many times as far a candidate may be there."""

MOST = 1.9
"""A loss that is not a number differs by 2, and is wrong in any chaos."""

REDUCED = 0.1
"""How far a candidate with fewer bits may be away, in the mean over the losses, beyond chaos."""


class Reference(Record):
    """Plain python's losses, and how well they repeat."""

    losses: tuple[float, ...]
    """Of the first run."""

    allowed: tuple[float, ...]
    """The relative difference that each may have."""

    chaos: float
    """How far plain python is from itself, in the mean."""


class Verdict(Record):
    """What the losses of a candidate say."""

    good: bool
    """Whether it learns as plain python does."""

    worst: float | None
    """Its largest relative difference; None where nothing could be compared."""

    compared: int
    """How many losses were."""

    says: str
    """In words."""


def reference(runs: Sequence[Sequence[float]]) -> Reference:
    """From the losses of several runs of plain python."""
    first, *others = runs
    count = min(map(len, runs))
    spread = [
        max((_difference(other[at], first[at]) for other in others), default=0.0)
        for at in range(count)
    ]
    # a step ahead, as what has not grown yet in one run may have in another
    farthest = list(accumulate(spread, max))
    ahead = farthest[1:] + farthest[-1:]
    return Reference(
        losses=tuple(first),
        allowed=tuple(map(_allowed, ahead)),
        chaos=sum(spread) / max(1, count),
    )


def _allowed(spread: float) -> float:
    if spread <= CHAOS:
        return max(LEAST, TIMES * spread)
    return min(MOST, max(TIMES * CHAOS, TIMES_IN_CHAOS * spread))


def _difference(loss: float, other: float) -> float:
    return loss_difference([loss], [other]) or 0.0


def check(known: Reference, losses: Sequence[float], *, reduced: bool = False) -> Verdict:
    """Compare a candidate's losses with plain python's."""
    count = min(len(known.allowed), len(losses))
    if count == 0:
        return Verdict(
            good=not reduced, worst=None, compared=0, says="there are no losses to compare"
        )
    differences = [_difference(losses[at], known.losses[at]) for at in range(count)]
    worst = max(differences)
    if reduced:
        mean = sum(differences) / count
        most = REDUCED + known.chaos
        good = mean <= most
        limit = f"{most:.2g} in the mean, and is {mean:.2g}"
    else:
        over = [at for at in range(count) if differences[at] > known.allowed[at]]
        good = not over
        at = over[0] if over else count - 1
        limit = f"{known.allowed[at]:.1g} at loss {at + 1}, and is {differences[at]:.2g}"
    if good:
        return Verdict(
            good=True, worst=worst, compared=count,
            says=f"{count} losses within {worst:.1g} of plain python's",
        )  # fmt: skip
    return Verdict(
        good=False, worst=worst, compared=count, says=f"its losses may differ by {limit}"
    )
