"""Other kernels for torch's operations: which can be had, and which are right and faster here.

Importing this loads no torch: backends are asked and examined in processes of their own.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Host, Unavailable
from cputrain.backends.findings import Finding, chosen, findings
from cputrain.backends.probing import Probed
from cputrain.backends.verdict import Judged, LayerFound, Verdict

__all__ = [
    "Available",
    "Finding",
    "Host",
    "Judged",
    "LayerFound",
    "Probed",
    "Unavailable",
    "Verdict",
    "chosen",
    "findings",
]
