"""Compare training steps of torchvision's image classification networks between devices.

Importing this package does not import torch: each device runs in a subprocess, since a process
can have only one accelerator backend beside the CPU.
"""

from __future__ import annotations

from cputrain.bench.networks.cases import CASES
from cputrain.bench.networks.comparison import (
    NetworkComparison,
    NetworkResult,
    NetworkSide,
    compare_networks,
)
from cputrain.bench.networks.tables import as_markdown, case_note, case_table, footnote

__all__ = [
    "CASES",
    "NetworkComparison",
    "NetworkResult",
    "NetworkSide",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_networks",
    "footnote",
]
