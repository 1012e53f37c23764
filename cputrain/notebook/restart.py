"""Command that starts a process like this one under `cputrain launch`."""

from __future__ import annotations

import sys


def launch_target() -> tuple[str, ...]:
    """Return the arguments of `cputrain launch` that would start a process like this one."""
    if "ipykernel" in sys.modules:
        return ("--cmd", "--", "jupyter", "lab")
    if "IPython" in sys.modules and hasattr(sys, "ps1"):
        return ("--cmd", "--", "ipython")
    if hasattr(sys, "ps1") or not sys.argv[0] or sys.argv[0] == "-c":
        return ("--cmd", "--", "python")
    return (sys.argv[0],)
