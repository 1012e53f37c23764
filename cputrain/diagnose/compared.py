"""Two diagnoses side by side: what of a step became faster, and by how much."""

from __future__ import annotations

from cputrain.diagnose.layers import BETWEEN, WAITING
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose.diagnosis import Diagnosis
    from cputrain.diagnose.seen import Seen

NOISE = 0.02
"""Of a step: what differs by less is the same, however steady steps were."""


class Row(Record):
    """Something that takes time in a step, in the one and in the other."""

    name: str
    before: float
    after: float
    """Seconds of a step; 0 where there is none of it."""

    @property
    def saved(self) -> float:
        """Seconds."""
        return self.before - self.after


class Compared(Record):
    """One run against another."""

    speedup: float
    """By how much a step of the second is faster."""

    sure: bool
    """Whether that is more than steps of a run differ."""

    parts: tuple[Row, ...]
    """A step, and what it is made of."""

    layers: tuple[Row, ...]
    """By kind."""

    operators: tuple[Row, ...]
    """By name; what changed most first."""

    gone: tuple[str, ...]
    new: tuple[str, ...]
    """Findings that only one of them has."""

    rough: tuple[str, ...]
    """Why figures of either are rough."""

    differs: tuple[str, ...]
    """What else is not the same in both, so that the script alone does not explain the figures."""


def compare(before: Diagnosis, after: Diagnosis) -> Compared:
    """The first against the second."""
    one, other = before.seen, after.seen
    remedies = [{each.remedy for each in found.findings} for found in (before, after)]
    noise = max(NOISE, one.spread / 2 + other.spread / 2)
    return Compared(
        speedup=one.step / other.step,
        sure=abs(one.step - other.step) > noise * min(one.step, other.step),
        parts=tuple(
            Row(name=name, before=a, after=b)
            for (name, a), (_, b) in zip(parts_of(one), parts_of(other), strict=True)
            if a or b
        ),
        layers=_rows(
            ((each.kind, each.seconds) for each in found.layers
             if each.kind not in {WAITING, BETWEEN})
            for found in (before, after)
        ),
        operators=_rows(
            ((each.name, each.seconds) for each in seen.operators) for seen in (one, other)
        ),
        gone=tuple(each.title for each in before.findings if each.remedy not in remedies[1]),
        new=tuple(each.title for each in after.findings if each.remedy not in remedies[0]),
        rough=tuple(
            f"of the {which} run, {reason}"
            for which, found in (("first", before), ("second", after))
            for reason in found.rough
        ),
        differs=tuple(_differs(before, after)),
    )  # fmt: skip


def parts_of(seen: Seen) -> tuple[tuple[str, float], ...]:
    """Seconds of a step and of its parts, which another run has as well."""
    return (
        ("a step", seen.step),
        ("loader", seen.wait),
        ("forward", seen.forward),
        ("backward", seen.backward),
        ("optimizer", seen.optimizer),
        ("operators", seen.computing),
        ("between operators", seen.between),
    )


def _rows(both: Iterable[Iterable[tuple[str, float]]]) -> tuple[Row, ...]:
    """What has the same name together, and what changed most first."""
    summed: list[dict[str, float]] = []
    for each in both:
        into: dict[str, float] = {}
        for name, seconds in each:
            into[name] = into.get(name, 0.0) + seconds
        summed.append(into)
    one, other = summed
    rows = [
        Row(name=name, before=one.get(name, 0.0), after=other.get(name, 0.0))
        for name in {**one, **other}
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.saved)))


def _differs(before: Diagnosis, after: Diagnosis) -> Iterable[str]:
    for what, one, other in (
        ("script", before.script, after.script),
        ("machine", before.box.name, after.box.name),
        ("cores", before.roof.cores, after.roof.cores),
        ("threads", before.seen.threads, after.seen.threads),
        ("torch", before.roof.torch, after.roof.torch),
        ("cputrain", before.cputrain, after.cputrain),
    ):
        if one != other:
            yield f"{what}: {one}, then {other}"
