"""Alternative kernels for torch's operations: which are available, correct and faster here.

The import loads no torch: backends are probed and examined in separate processes.
"""

from __future__ import annotations

from cputrain.backends.backend import Available, Host, Unavailable
from cputrain.backends.findings import BackendFinding, choose_backend, collect_findings
from cputrain.backends.probing import ProbeResult
from cputrain.backends.verdict import BackendVerdict, LayerResult, ModeVerdict

__all__ = [
    "Available",
    "BackendFinding",
    "BackendVerdict",
    "Host",
    "LayerResult",
    "ModeVerdict",
    "ProbeResult",
    "Unavailable",
    "choose_backend",
    "collect_findings",
]
