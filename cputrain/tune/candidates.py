"""Search space of tune. To add a setting: a module in `knobs`, and a line here."""

from __future__ import annotations

from cputrain.record import Record
from cputrain.tune.knobs import (
    allocator,
    attention,
    channels_last,
    compiling,
    huge_pages,
    loader,
    precision,
    replicas,
    threads,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.trial import TrialOutcome

    class TunableSetting(Protocol):
        """A module with the candidate values of a setting."""

        KNOB: str
        """Name of the setting."""

        IN_STEPS: bool
        """Whether values are ordered: after several slower ones the rest is skipped."""

        def values(self, situation: Situation, /) -> list[str]:
            """Return candidate values other than the planned one, the most promising first."""


class Situation(Record):
    """Facts on which the candidates depend."""

    machine: Machine
    """The machine."""

    plan: Plan
    """The rule-based plan, with the user's settings."""

    rules: TrialOutcome
    """Outcome of a trial of the rule-based plan."""

    precision: str
    """Lowest precision that the user allows: float32 or bf16."""


KNOBS: tuple[TunableSetting, ...] = (
    precision,
    channels_last,
    threads,
    replicas,
    loader,
    attention,
    allocator,
    huge_pages,
)
"""Settings tried one at a time, those with the largest measured effect first."""

LATE: tuple[TunableSetting, ...] = (compiling,)
"""Settings whose trials are expensive: tried last, on top of the best of the others."""
