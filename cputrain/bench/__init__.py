"""Benchmarks that run the same work in two or more ways, interleaved, and compare the results.

README.md in this folder describes the modules and the data flow.
"""

from __future__ import annotations

from cputrain.bench.compare import ScriptComparison, Side, compare
from cputrain.bench.markdown import as_markdown
from cputrain.bench.measurement import Measurement, measure
from cputrain.bench.workloads import description, workloads
from cputrain.measure.statistics import Speedup

__all__ = [
    "Measurement",
    "ScriptComparison",
    "Side",
    "Speedup",
    "as_markdown",
    "compare",
    "description",
    "measure",
    "workloads",
]
