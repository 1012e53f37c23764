"""Candidates for `compile`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "compile"
IN_STEPS = False


def values(_situation: Situation) -> list[str]:
    """Return on, if a C++ compiler is installed."""
    from shutil import which

    return ["on"] if any(map(which, ("g++", "clang++", "c++"))) else []
