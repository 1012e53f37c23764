"""The judge: the same script run in two or more ways, side by side, and what came out.

See README.md in this folder for its tree and the life of a value through it.
"""

from __future__ import annotations

from cputrain.bench.compare import Comparison, Side, Speedup, compare
from cputrain.bench.markdown import as_markdown
from cputrain.bench.measurement import Measurement, measure
from cputrain.bench.workloads import description, workloads

__all__ = [
    "Comparison",
    "Measurement",
    "Side",
    "Speedup",
    "as_markdown",
    "compare",
    "description",
    "measure",
    "workloads",
]
