"""Names of modules and classes: in the terms of the field, and each class name once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
"""Names of modules for which docs/help/glossary.md has the field's own."""


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


RIDDLES = {
    "asked", "found", "made", "nobody", "one", "other", "own", "those", "told", "took", "whoever",
}  # fmt: skip
"""Names that say nothing about the value they stand for."""

PUBLIC = {
    "cputrain/errors.py": {"found"},  # an attribute of every exception
    "cputrain/machine/opencl_drivers.py": {"found"},  # keys of JSON documents
    "cputrain/settings/backend.py": {"asked"},
    "cputrain/bench/networks/comparison.py": {"asked"},
}
"""Names that users depend on."""


def new_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module gives to functions, classes, arguments and values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            if node.name in ("__eq__", "__ne__"):  # `other` is what Python calls their argument
                for argument in node.args.args:  # type: ignore[union-attr]
                    argument.arg = ""
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_no_value_has_a_name_that_is_a_riddle() -> None:
    riddles = {}
    for folder in ("cputrain", "launch"):
        for path in (ROOT / folder).rglob("*.py"):
            place = str(path.relative_to(ROOT))
            names = {name.strip("_") for name in new_names(ast.parse(path.read_text()))}
            if names := names & RIDDLES - PUBLIC.get(place, set()):
                riddles[place] = sorted(names)
    assert riddles == {}
