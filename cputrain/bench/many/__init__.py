"""Many trainings on one machine: cputrain many and Many, against other ways to run them.

Importing this package does not import torch: each way runs in a subprocess.
"""

from __future__ import annotations

from cputrain.bench.many.cases import CASES
from cputrain.bench.many.comparison import (
    ManyCaseResult,
    ManyComparison,
    ManySide,
    compare_many,
)
from cputrain.bench.many.tables import as_markdown, case_table, footnote
from cputrain.bench.tables import case_note

__all__ = [
    "CASES",
    "ManyCaseResult",
    "ManyComparison",
    "ManySide",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_many",
    "footnote",
]
