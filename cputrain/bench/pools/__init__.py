"""Compare process pools: cputrain's, torch's, concurrent.futures, joblib's and mpire's.

Importing this package does not import torch: each pool runs in a subprocess.
"""

from __future__ import annotations

from cputrain.bench.pools.cases import CASES
from cputrain.bench.pools.comparison import (
    PoolCaseResult,
    PoolComparison,
    PoolSide,
    compare_pools,
)
from cputrain.bench.pools.tables import as_markdown, case_table, footnote
from cputrain.bench.tables import case_note

__all__ = [
    "CASES",
    "PoolCaseResult",
    "PoolComparison",
    "PoolSide",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_pools",
    "footnote",
]
