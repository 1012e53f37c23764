"""What tune tries: every knob. To add one: a file in `knobs`, a line here."""

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
        """A module that knows what is worth trying."""

        KNOB: str
        """The setting of the plan that it turns."""

        IN_STEPS: bool
        """Whether values go one way: where they get slower and slower, the rest is left out."""

        def values(self, situation: Situation, /) -> list[str]:
            """What to try besides what stands, the most promising first."""


class Situation(Record):
    """What is known before anything is tried."""

    machine: Machine
    """The machine."""

    plan: Plan
    """The one by rules, with what the user has set."""

    rules: TrialOutcome
    """A trial of the plan by rules."""

    precision: str
    """The least that the user allows: float32 or bf16."""


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
"""Tried each alone, those that have made most difference first: there may be time for two only."""

LATE: tuple[TunableSetting, ...] = (compiling,)
"""Those that cost much to try: on top of the best of the others, in the time that is left."""
