"""Compare two diagnoses: which parts of a step became faster, and by how much."""

from __future__ import annotations

from cputrain.diagnose.layers import BETWEEN, WAITING
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose.diagnosis import Diagnosis
    from cputrain.diagnose.step_profile import StepProfile

MIN_NOISE = 0.02
"""Fraction of a step below which a difference is noise, however little the steps of a run vary."""


class TimeChange(Record):
    """Time of one part of a step in two runs."""

    name: str
    """Phase, kind of layer, or operator."""

    before: float
    """Seconds of a step in the first run; 0 if the part is absent."""

    after: float
    """Seconds of a step in the second run; 0 if the part is absent."""

    @property
    def saved(self) -> float:
        """Return the seconds that the second run saves; negative if it is slower."""
        return self.before - self.after


class DiagnosisComparison(Record):
    """Differences between the diagnoses of two runs."""

    speedup: float
    """Step time of the first run divided by that of the second."""

    sure: bool
    """Whether the step times differ by more than the noise within a run."""

    parts: tuple[TimeChange, ...]
    """The whole step, its phases, and the time in and between operators."""

    layers: tuple[TimeChange, ...]
    """Kinds of layers, largest change first."""

    operators: tuple[TimeChange, ...]
    """Operators by name, largest change first."""

    gone: tuple[str, ...]
    """Titles of findings that only the first run has."""

    new: tuple[str, ...]
    """Titles of findings that only the second run has."""

    rough: tuple[str, ...]
    """Why figures of either run are rough; empty if they are not."""

    differs: tuple[str, ...]
    """Other differences between the runs, such as machine or threads, that may explain figures."""


def compare(before: Diagnosis, after: Diagnosis) -> DiagnosisComparison:
    """Return the differences of a second diagnosis from a first."""
    first, second = before.seen, after.seen
    remedies = [{finding.remedy for finding in diagnosis.findings} for diagnosis in (before, after)]
    noise = max(MIN_NOISE, first.spread / 2 + second.spread / 2)
    return DiagnosisComparison(
        speedup=first.step / second.step,
        sure=abs(first.step - second.step) > noise * min(first.step, second.step),
        parts=tuple(
            TimeChange(name=name, before=first_s, after=second_s)
            for (name, first_s), (_, second_s)
            in zip(phase_times(first), phase_times(second), strict=True)
            if first_s or second_s
        ),
        layers=_changes(
            ((layer.kind, layer.seconds) for layer in diagnosis.layers
             if layer.kind not in {WAITING, BETWEEN})
            for diagnosis in (before, after)
        ),
        operators=_changes(
            ((operator.name, operator.seconds) for operator in profile.operators)
            for profile in (first, second)
        ),
        gone=tuple(
            finding.title for finding in before.findings if finding.remedy not in remedies[1]
        ),
        new=tuple(
            finding.title for finding in after.findings if finding.remedy not in remedies[0]
        ),
        rough=tuple(
            f"in the {ordinal} run, {reason}"
            for ordinal, diagnosis in (("first", before), ("second", after))
            for reason in diagnosis.rough
        ),
        differs=tuple(_differences(before, after)),
    )  # fmt: skip


def phase_times(profile: StepProfile) -> tuple[tuple[str, float], ...]:
    """Return the seconds of a step, of its phases, and in and between its operators."""
    return (
        ("a step", profile.step),
        ("loader", profile.wait),
        ("forward", profile.forward),
        ("backward", profile.backward),
        ("optimizer", profile.optimizer),
        ("operators", profile.computing),
        ("between operators", profile.between),
    )


def _changes(runs: Iterable[Iterable[tuple[str, float]]]) -> tuple[TimeChange, ...]:
    """Sum the times of each run by name, and return the changes, the largest first."""
    totals: list[dict[str, float]] = []
    for times in runs:
        total: dict[str, float] = {}
        for name, seconds in times:
            total[name] = total.get(name, 0.0) + seconds
        totals.append(total)
    first, second = totals
    changes = [
        TimeChange(name=name, before=first.get(name, 0.0), after=second.get(name, 0.0))
        for name in {**first, **second}
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.saved)))


def _differences(before: Diagnosis, after: Diagnosis) -> Iterable[str]:
    """Yield what differs between the runs apart from their times."""
    for name, first, second in (
        ("script", before.script, after.script),
        ("machine", before.box.name, after.box.name),
        ("cores", before.roof.cores, after.roof.cores),
        ("threads", before.seen.threads, after.seen.threads),
        ("torch", before.roof.torch, after.roof.torch),
        ("cputrain", before.cputrain, after.cputrain),
    ):
        if first != second:
            yield f"{name}: {first}, then {second}"
