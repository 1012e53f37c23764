"""Names of modules: the field's own, not those that were given up."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

GIVEN_UP = {
    "split": ("again", "road", "seats", "asked", "crew", "team", "meeting", "part", "call",
              "mirror", "draws", "choose", "shares", "costs", "ranks", "splitter",
              "split"),
    "opencl": ("recorded", "repeated", "between", "together", "pending", "writing", "window",
               "bending", "picking", "finding", "making", "drawing"),
    "pool": ("feed", "template"),
    "data": ("notices", "paths", "ahead", "next_epoch"),
    "runtime": ("exchange", "outermost", "derivatives", "waits", "leaving", "carried", "at_work",
                "counted"),
    "diagnose": ("seen", "box", "kept", "compared", "applied", "measuring"),
    "notebook": ("carrying", "given", "began"),
    "ipc": ("nameless", "packing"),
}  # fmt: skip
"""Names of modules for which docs/glossary.md has the field's own."""


@pytest.mark.parametrize("package", GIVEN_UP)
def test_no_module_has_a_name_that_was_given_up(package: str) -> None:
    names = {path.stem for path in (ROOT / "cputrain" / package).rglob("*.py")}
    assert names.isdisjoint(GIVEN_UP[package])
