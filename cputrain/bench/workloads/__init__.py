"""Plain PyTorch scripts used as benchmark workloads; they do not use cputrain.

Every script in this folder is a workload. It takes `--steps`, begins with a docstring whose first
line describes it, and prints the JSON line described in cputrain.bench.measurement.
"""

from __future__ import annotations

import os


def workloads() -> dict[str, str]:
    """Return the path of every workload by name, sorted by name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return {
        name.removesuffix(".py"): os.path.join(folder, name)
        for name in sorted(os.listdir(folder))
        if name.endswith(".py") and not name.startswith("_")
    }


def description(path: str) -> str:
    """Return the first line of a script's docstring; empty if it has none."""
    import ast

    with open(path, encoding="utf-8") as script:
        docstring = ast.get_docstring(ast.parse(script.read(), path))
    return docstring.splitlines()[0] if docstring else ""
