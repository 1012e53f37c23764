"""Compare data loaders: torch's, cputrain's, SPDL's if installed, and a plain loop.

Importing this package does not import torch: the loaders run in a subprocess.
"""

from __future__ import annotations

from cputrain.bench.loaders.comparison import (
    CASES,
    LoaderCaseResult,
    LoaderComparison,
    LoaderSide,
    compare_loaders,
)
from cputrain.bench.loaders.tables import as_markdown, case_table, footnote
from cputrain.bench.tables import case_note

__all__ = [
    "CASES",
    "LoaderCaseResult",
    "LoaderComparison",
    "LoaderSide",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_loaders",
    "footnote",
]
