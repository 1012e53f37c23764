"""Where a step's time goes, layer by layer: and what is left if one of them took none (Amdahl)."""

from __future__ import annotations

from cputrain.diagnose.finding import MOST
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.seen import Seen

STEP = "the optimizer"
OUTSIDE = "outside of layers"
WAITING = "waiting for data"
BETWEEN = "between operators"


class Layer(Record):
    """A kind of layer: all that are of it."""

    kind: str
    """Its class; or what is no layer."""

    count: int
    """How many layers."""

    forward: float
    backward: float
    """Seconds of a step."""

    share: float
    """Of a step."""

    cumulated: float
    """With all that are dearer."""

    most: float
    """By how much faster a step would be if this took no time at all."""

    @property
    def seconds(self) -> float:
        """Both ways."""
        return self.forward + self.backward


def layers_of(seen: Seen) -> tuple[Layer, ...]:
    """All, the dearest first."""
    forward: dict[str, float] = {WAITING: seen.wait, BETWEEN: seen.between}
    backward: dict[str, float] = {}
    names: dict[str, set[str]] = {}
    for one in seen.operators:
        kind = seen.kinds.get(one.layer, OUTSIDE)
        if one.phase == "optimizer":
            kind = STEP
        elif one.layer in seen.kinds:
            names.setdefault(kind, set()).add(one.layer)
        into = backward if one.phase == "backward" else forward
        into[kind] = into.get(kind, 0.0) + one.seconds
    both = {
        kind: forward.get(kind, 0.0) + backward.get(kind, 0.0) for kind in {**forward, **backward}
    }
    whole = sum(both.values()) or 1.0
    found, cumulated = [], 0.0
    for kind in sorted(both, key=lambda one: -both[one]):
        share = both[kind] / whole
        if not share:
            continue
        cumulated += share
        found.append(
            Layer(
                kind=kind, count=len(names.get(kind, ())), forward=forward.get(kind, 0.0),
                backward=backward.get(kind, 0.0), share=share, cumulated=cumulated,
                most=min(MOST, 1 / (1 - share) if share < 1 else MOST),
            )
        )  # fmt: skip
    return tuple(found)
