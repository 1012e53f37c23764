"""Remember in Inductor's cache that what its compiler makes can be loaded.

Before each first compilation of a process, Inductor has a new process of Python load a library for
each instruction set of the CPU. Meanwhile a script on one core hardly trains.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SUFFIX = ".loaded"
"""Ending of the file beside a library that has been loaded."""


def remember_probes() -> None:
    """Have Inductor load each of these libraries once, not in each process."""
    from torch._inductor.cpu_vec_isa import VecISA

    probe = getattr(VecISA, "_probe_load", None)  # torch before 2.13 has none
    if probe is not None and not hasattr(probe, "__wrapped__"):
        VecISA._probe_load = _remembered(probe)  # type: ignore[method-assign, assignment]


def _remembered(probe: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    def probe_load(self: Any, output_path: str) -> bool:
        marker = output_path + SUFFIX
        try:
            is_remembered = os.stat(marker).st_mtime_ns >= os.stat(output_path).st_mtime_ns
        except OSError:
            is_remembered = False
        if is_remembered:
            return True
        is_loaded = probe(self, output_path)
        if is_loaded:
            with suppress(OSError), open(marker, "w", encoding="ascii"):
                pass
        return is_loaded

    probe_load.__wrapped__ = probe  # type: ignore[attr-defined]
    return probe_load
