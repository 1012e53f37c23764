"""One model trained on each device alone, and divided among them.

Importing this loads no torch: each case runs in a process of its own.
"""

from __future__ import annotations

from cputrain.bench.devices.cases import CASES
from cputrain.bench.devices.comparison import (
    DeviceCaseResult,
    DeviceComparison,
    DeviceSide,
    compare_devices,
)
from cputrain.bench.devices.tables import as_markdown, below, case_table, reading

__all__ = [
    "CASES",
    "DeviceCaseResult",
    "DeviceComparison",
    "DeviceSide",
    "as_markdown",
    "below",
    "case_table",
    "compare_devices",
    "reading",
]
