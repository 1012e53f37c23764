"""Time of a step by kind of layer, and the speed-up without each kind (Amdahl's law)."""

from __future__ import annotations

from cputrain.diagnose.finding import MAX_SPEEDUP
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.step_profile import StepProfile

OPTIMIZER = "the optimizer"
OUTSIDE = "outside of layers"
WAITING = "waiting for data"
BETWEEN = "between operators"


class LayerTime(Record):
    """Time of all layers of one class, or of something outside of layers."""

    kind: str
    """Class name of the layers, or `OPTIMIZER`, `OUTSIDE`, `WAITING` or `BETWEEN`."""

    count: int
    """Number of layers; 0 outside of layers."""

    forward: float
    """Seconds of a step in the forward pass, and outside of layers."""

    backward: float
    """Seconds of a step in the backward pass."""

    share: float
    """Fraction of the step."""

    cumulated: float
    """Sum of this share and all larger ones."""

    most: float
    """Speed-up of the step if this took no time: 1 / (1 - share), limited to `MAX_SPEEDUP`."""

    @property
    def seconds(self) -> float:
        """Return the seconds of forward and backward pass together."""
        return self.forward + self.backward


def layer_times(profile: StepProfile) -> tuple[LayerTime, ...]:
    """Return the time of each kind of layer, the largest first; kinds without time are omitted."""
    forward: dict[str, float] = {WAITING: profile.wait, BETWEEN: profile.between}
    backward: dict[str, float] = {}
    layers: dict[str, set[str]] = {}
    for operator in profile.operators:
        kind = profile.kinds.get(operator.layer, OUTSIDE)
        if operator.phase == "optimizer":
            kind = OPTIMIZER
        elif operator.layer in profile.kinds:
            layers.setdefault(kind, set()).add(operator.layer)
        totals = backward if operator.phase == "backward" else forward
        totals[kind] = totals.get(kind, 0.0) + operator.seconds
    seconds = {
        kind: forward.get(kind, 0.0) + backward.get(kind, 0.0) for kind in {**forward, **backward}
    }
    total_s = sum(seconds.values()) or 1.0
    result, cumulated = [], 0.0
    for kind in sorted(seconds, key=lambda kind: -seconds[kind]):
        share = seconds[kind] / total_s
        if not share:
            continue
        cumulated += share
        result.append(
            LayerTime(
                kind=kind, count=len(layers.get(kind, ())), forward=forward.get(kind, 0.0),
                backward=backward.get(kind, 0.0), share=share, cumulated=cumulated,
                most=min(MAX_SPEEDUP, 1 / (1 - share) if share < 1 else MAX_SPEEDUP),
            )
        )  # fmt: skip
    return tuple(result)
