"""Facts on which the values that `cputrain tune` tries depend."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine import Machine


class Situation(Record):
    """Machine, rule-based plan, and what a run under this plan showed."""

    machine: Machine
    """The machine."""

    values: Mapping[str, Any]
    """Values of the rule-based plan with the user's settings, by the name of the setting."""

    uses: frozenset[str]
    """Kinds of operators that the script computes: "attention", "convolution"."""

    wait_fraction: float
    """Fraction of the step time in which the script waits for data."""

    precision: str
    """Lowest precision that the user allows: float32 or bf16."""
