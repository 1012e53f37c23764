"""Compare training on each device alone with batches sharded across all devices.

Importing this package does not import torch: each case runs in a subprocess.
"""

from __future__ import annotations

from cputrain.bench.devices.cases import CASES
from cputrain.bench.devices.comparison import (
    DeviceCaseResult,
    DeviceComparison,
    DeviceSide,
    compare_devices,
)
from cputrain.bench.devices.tables import as_markdown, case_note, case_table, footnote

__all__ = [
    "CASES",
    "DeviceCaseResult",
    "DeviceComparison",
    "DeviceSide",
    "as_markdown",
    "case_note",
    "case_table",
    "compare_devices",
    "footnote",
]
