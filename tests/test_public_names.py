"""`__all__` of each package names what is there, sorted, and nothing else."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PACKAGES = [
    "cputrain",
    *sorted(
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "cputrain").rglob("*/__init__.py")
    ),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_what_is_there(name: str) -> None:
    package = importlib.import_module(name)
    path = ROOT / name.replace(".", "/") / "__init__.py"
    imported = {
        alias.asname or alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    promised = getattr(package, "__all__", [])
    assert list(promised) == sorted(promised)
    assert len(set(promised)) == len(promised)
    for attribute in promised:
        assert getattr(package, attribute) is not None
    assert imported <= set(promised), f"{name} imports what its __all__ does not name"
    assert package.__doc__
