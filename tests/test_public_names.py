"""`__all__` of each package names what is there, sorted, and nothing else."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
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


APART = "cputrain.opencl"
"""Importing it registers a device with torch, which is for the whole process."""

ASK = (
    "import importlib, json, sys; package = importlib.import_module(sys.argv[1]); "
    "names = list(getattr(package, '__all__', [])); "
    "missing = [one for one in names if not hasattr(package, one)]; "
    "print(json.dumps([names, missing, package.__doc__]))"
)


def looked_at(name: str) -> tuple[list[str], list[str], str | None]:
    """What a package promises, what of that is not there, and what it says of itself."""
    if name.startswith(APART):
        said = subprocess.run(
            [sys.executable, "-c", ASK, name], capture_output=True, text=True, check=True
        ).stdout
        promised, missing, doc = json.loads(said)
        return promised, missing, doc
    package = importlib.import_module(name)
    names = list(getattr(package, "__all__", []))
    return names, [one for one in names if getattr(package, one, None) is None], package.__doc__


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_what_is_there(name: str) -> None:
    promised, missing, doc = looked_at(name)
    path = ROOT / name.replace(".", "/") / "__init__.py"
    imported = {
        alias.asname or alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    assert promised == sorted(promised)
    assert len(set(promised)) == len(promised)
    assert missing == []
    assert imported <= set(promised), f"{name} imports what its __all__ does not name"
    assert doc
