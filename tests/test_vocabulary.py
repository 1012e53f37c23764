"""Names in the package: a class name stands once, and no module has one that was given up."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MODULES = sorted(
    path
    for folder in ("cputrain", "launch")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)

GIVEN_UP = {
    "split": ("again", "road", "seats", "asked", "crew", "team", "meeting", "part", "call",
              "views", "mirror", "draws", "choose", "shares", "costs", "ranks", "splitter",
              "split"),
    "opencl": ("recorded", "repeated", "between", "together", "pending", "writing", "window",
               "bending", "picking", "finding", "making", "drawing"),
    "pool": ("feed", "template"),
    "data": ("notices", "paths", "ahead", "next_epoch"),
    "runtime": ("exchange", "outermost", "derivatives", "waits", "leaving", "carried", "at_work"),
    "notebook": ("carrying", "given", "began"),
    "ipc": ("nameless", "packing"),
}  # fmt: skip
"""Names of modules for which docs/glossary.md has the field's own."""


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", GIVEN_UP)
def test_no_module_has_a_name_that_was_given_up(package: str) -> None:
    names = {path.stem for path in (ROOT / "cputrain" / package).rglob("*.py")}
    assert names.isdisjoint(GIVEN_UP[package])
