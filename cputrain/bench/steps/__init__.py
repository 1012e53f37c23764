"""Whole steps of small networks: eager, and compiled in several ways.

Importing this package does not import torch: steps are timed in subprocesses.
"""

from __future__ import annotations

from cputrain.bench.steps.cases import CASES
from cputrain.bench.steps.comparison import StepComparison, StepResult, StepTimes, compare_steps
from cputrain.bench.steps.tables import as_markdown, case_note, case_table, footnote

__all__ = [
    "CASES",
    "StepComparison",
    "StepResult",
    "StepTimes",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_steps",
    "footnote",
]
