"""Findings of a diagnosis, and the measurements in which causes of slowness are looked for."""

from __future__ import annotations

from enum import StrEnum

from cputrain.diagnose.consistency import reconcile
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from cputrain.diagnose.roof import Product, Roof
    from cputrain.diagnose.step_profile import StepProfile
    from cputrain.machine import Machine


MAX_SPEEDUP = 1000.0
"""Largest speed-up that is predicted."""


FEWER_BITS = "fewer bits"
"""What a remedy that lowers the precision changes in the results."""


class Confidence(StrEnum):
    """How a predicted speed-up is known."""

    MEASURED = "measured"
    """A run used the remedy, or the time that it saves was measured."""

    CALCULATED = "calculated"
    """Calculated from measured times and the machine's roof."""

    AT_BEST = "at best"
    """Upper limit, such as that of a compiler that fuses all it can."""


class Finding(Record):
    """A cause of slowness, its cost, and a remedy."""

    cause: str
    """One of "memory", "capacity", "work", "input", "overlap", "units" and "code"."""

    title: str
    """Summary in a few words, with the most important figure."""

    lost_seconds: float
    """Seconds of a step that the remedy saves."""

    speedup: float
    """Predicted speed-up of a step."""

    evidence: tuple[str, ...]
    """Measurements that support the finding, one per line."""

    remedy: str
    """Command or line of code."""

    settings: dict[str, str] | None = None
    """The remedy as options of `cputrain launch`; None if it is not an option."""

    exact: bool = True
    """Whether results stay the same up to the order of additions."""

    changes: str = ""
    """What the remedy changes in the results, if it is not exact."""

    sure: Confidence
    """How the speed-up is known."""

    @property
    def lowers_precision(self) -> bool:
        """Whether the remedy computes with fewer bits; older documents have no `changes`."""
        return not self.exact and self.changes in ("", FEWER_BITS)

    def __post_init__(self) -> None:
        """Reject a remedy that makes a step slower."""
        if self.lost_seconds < 0 or self.speedup < 1:
            raise ValueError(f"a finding that saves {self.lost_seconds} s, {self.speedup} times")


class TriedRemedy(Record):
    """Predicted and measured speed-up of one remedy, or of all together."""

    title: str
    """Title of the finding that it remedies."""

    settings: dict[str, str]
    """Options of `cputrain launch`."""

    predicted: float | None
    """Predicted speed-up of a step; None for all remedies together."""

    measured: float | None
    """Measured speed-up of a step; None if the run failed."""

    fault: str = ""
    """Why the run failed; empty if it did not."""


class DiagnosedCase(Record):
    """Machine, roof and step profile in which causes are looked for."""

    machine: Machine
    """Machine that the script ran on."""

    roof: Roof
    """Highest rates of the machine."""

    seen: StepProfile
    """Profile of the script's step."""

    fewer: StepProfile | None = None
    """Profile with fewer threads; None if that was not tried."""

    products: dict[Product, float] = {}
    """Seconds of matrix products with sides that fit the CPU's units badly, and that fit well."""

    def __post_init__(self) -> None:
        """Reconcile the roof and the profile: no operator exceeds the roof."""
        self.__dict__["roof"], self.__dict__["seen"] = reconcile(self.roof, self.seen)

    def least_step(self, *, exact: bool) -> float:
        """Return the seconds that the FLOPs of a step take at the roof.

        Args:
            exact: Whether each operator keeps its dtype; otherwise the fastest dtype counts.
        """
        threads = self.seen.threads
        compute_s = 0.0
        for operator in self.seen.operators:
            highest = self.roof.highest_flops(operator.compute_dtype, threads)
            if not exact:
                highest = max(
                    highest,
                    *(self.roof.flops(dtype, threads) for dtype in self.roof.flops_per_s),
                )
            compute_s += operator.flops / highest
        return min(self.seen.step, compute_s * self.seen.step / self.seen.instrumented_step)


if TYPE_CHECKING:

    class Cause(Protocol):
        """Interface of a module of `causes`."""

        def find(self, case: DiagnosedCase) -> Iterable[Finding]:
            """Yield findings of the cause; none if it costs nothing."""


def make_finding(
    case: DiagnosedCase,
    lost_s: float,
    *,
    from_operators: bool = False,
    exact: bool = True,
    **fields: Any,
) -> Finding:
    """Return a finding, its savings limited to what the roof allows and to `MAX_SPEEDUP`.

    Args:
        case: Case in which the cause was found.
        lost_s: Seconds of a step that the remedy saves.
        from_operators: Whether `lost_s` sums times of operators in traced steps, which are slower
            than undisturbed steps; it is scaled then.
        exact: Whether the remedy leaves results the same up to the order of additions.
        fields: Other fields of `Finding`.
    """
    step_s = case.seen.step
    if from_operators:
        lost_s *= step_s / case.seen.instrumented_step
    max_lost_s = min(step_s - case.least_step(exact=exact), (1 - 1 / MAX_SPEEDUP) * step_s)
    lost_s = max(0.0, min(lost_s, max_lost_s))
    return Finding(lost_seconds=lost_s, speedup=step_s / (step_s - lost_s), exact=exact, **fields)
