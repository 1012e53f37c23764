"""Networks of images trained on each device, beside one another.

Importing this loads no torch: each device has a process of its own, as torch has one place for a
device beside the CPU at a time.
"""

from __future__ import annotations

from cputrain.bench.networks.cases import CASES
from cputrain.bench.networks.comparison import (
    NetworkComparison,
    NetworkResult,
    NetworkSide,
    compare_networks,
)
from cputrain.bench.networks.tables import as_markdown, below, case_table, reading

__all__ = [
    "CASES",
    "NetworkComparison",
    "NetworkResult",
    "NetworkSide",
    "as_markdown",
    "below",
    "case_table",
    "compare_networks",
    "reading",
]
