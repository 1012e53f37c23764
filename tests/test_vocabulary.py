"""Names of modules and classes: in the terms of the field, and each class name once."""

from __future__ import annotations

import ast
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


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for folder in ("cputrain", "launch"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
