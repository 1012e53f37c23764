"""Loaders side by side: torch's, ours, SPDL's where it is installed, and a loop by hand.

Importing this loads no torch: the loaders run in a process of their own.
"""

from __future__ import annotations

from cputrain.bench.loaders.comparison import (
    CASES,
    CaseResult,
    LoaderComparison,
    LoaderSide,
    compare_loaders,
)
from cputrain.bench.loaders.tables import as_markdown, case_table, reading
from cputrain.bench.tables import below

__all__ = [
    "CASES",
    "CaseResult",
    "LoaderComparison",
    "LoaderSide",
    "as_markdown",
    "below",
    "case_table",
    "compare_loaders",
    "reading",
]
