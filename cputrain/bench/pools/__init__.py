"""Pools side by side: ours, torch's, the standard library's executor, joblib's and mpire's.

Importing this loads no torch: each pool runs in a process of its own.
"""

from __future__ import annotations

from cputrain.bench.pools.cases import CASES
from cputrain.bench.pools.comparison import (
    PoolCaseResult,
    PoolComparison,
    PoolSide,
    compare_pools,
)
from cputrain.bench.pools.tables import as_markdown, case_table, reading
from cputrain.bench.tables import below

__all__ = [
    "CASES",
    "PoolCaseResult",
    "PoolComparison",
    "PoolSide",
    "as_markdown",
    "below",
    "case_table",
    "compare_pools",
    "reading",
]
