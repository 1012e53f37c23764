"""Optimizer steps: cputrain's fused kernels against torch's, by number and size of tensors.

Importing this package does not import torch: steps are timed in subprocesses.
"""

from __future__ import annotations

from cputrain.bench.optimizers.cases import CASES
from cputrain.bench.optimizers.comparison import (
    OptimizerCell,
    OptimizerComparison,
    OptimizerResult,
    compare_optimizers,
)
from cputrain.bench.optimizers.tables import as_markdown, case_note, case_table, footnote

__all__ = [
    "CASES",
    "OptimizerCell",
    "OptimizerComparison",
    "OptimizerResult",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_optimizers",
    "footnote",
]
