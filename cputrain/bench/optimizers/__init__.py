"""Optimizers' steps, fused by cputrain beside torch's own, over numbers and sizes of tensors.

Importing this loads no torch: steps are timed in processes of their own.
"""

from __future__ import annotations

from cputrain.bench.optimizers.cases import CASES
from cputrain.bench.optimizers.comparison import (
    OptimizerCell,
    OptimizerComparison,
    OptimizerResult,
    compare_optimizers,
)
from cputrain.bench.optimizers.tables import as_markdown, below, case_table, reading

__all__ = [
    "CASES",
    "OptimizerCell",
    "OptimizerComparison",
    "OptimizerResult",
    "as_markdown",
    "below",
    "case_table",
    "compare_optimizers",
    "reading",
]
