"""What each part may import: the arrow of the design, and the price of a launch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.programs import PYTHON, run, script

ROOT = Path(__file__).parents[2]

HEAVY = {
    "argparse", "dataclasses", "inspect", "typing", "pathlib", "subprocess", "tomllib", "ast",
    "rich", "numpy", "psutil", "cpuinfo", "logging", "tempfile", "urllib", "difflib", "hashlib",
}  # fmt: skip


def modules_of(done_stderr: str) -> set[str]:
    return set(re.findall(r"^import time:.*\|\s*(\S+)$", done_stderr, re.MULTILINE))


def loaded(folder: Path, *words: str) -> set[str]:
    """Modules that a command imports beyond what every interpreter here has."""
    always = modules_of(run((PYTHON, "-X", "importtime", "-c", "pass"), folder).stderr)
    start = "import sys; from cputrain.launch.cli import main; sys.exit(main(sys.argv[1:]))"
    done = run((PYTHON, "-X", "importtime", "-c", start, *words), folder)
    assert done.returncode == 0, done.stderr
    return modules_of(done.stderr) - always


@pytest.mark.parametrize(
    "words",
    [("launch", "x.py"), ("launch", "--dry-run", "x.py"), ("plan",), ("plan", "--json"), ("info",)],
)
def test_no_command_imports_torch(tmp_path: Path, words: tuple[str, ...]) -> None:
    script(tmp_path, "")
    assert not {name for name in loaded(tmp_path, *words) if name.partition(".")[0] == "torch"}


def test_a_plain_launch_imports_nothing_heavy(tmp_path: Path) -> None:
    script(tmp_path, "")
    found = {name.partition(".")[0] for name in loaded(tmp_path, "launch", "-q", "x.py")}
    assert not found & HEAVY, sorted(found & HEAVY)


def test_importing_cputrain_is_free(tmp_path: Path) -> None:
    always = modules_of(run((PYTHON, "-X", "importtime", "-c", "pass"), tmp_path).stderr)
    done = run((PYTHON, "-X", "importtime", "-c", "import cputrain"), tmp_path)
    assert {name for name in modules_of(done.stderr) - always if "cputrain" not in name} <= {
        "__future__"
    }
    assert not {name for name in modules_of(done.stderr) if name.startswith("cputrain.")}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from ([node.module] if node.module != "cputrain" else ())
            if node.module == "cputrain":
                yield from (f"cputrain.{alias.name}" for alias in node.names)


SMALL = (
    "cputrain.record", "cputrain.errors", "cputrain.counting", "cputrain.suggestions",
    "cputrain.quantities",
)  # fmt: skip
"""Modules at the top that every folder may import."""

RULES = {
    "cputrain/measure": ("cputrain.measure", "cputrain.__version__", *SMALL),
    "cputrain/machine": ("cputrain.machine", *SMALL),
    "cputrain/settings": ("cputrain.settings", "cputrain.runtime", "cputrain.machine", *SMALL),
    "cputrain/plan": ("cputrain.plan", "cputrain.settings", "cputrain.machine", *SMALL),
    "launch": ("cputrain",),
}


@pytest.mark.parametrize("folder", RULES)
def test_the_arrow_of_the_design_is_kept(folder: str) -> None:
    allowed = RULES[folder]
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imports_of(path):
            top = name.partition(".")[0]
            assert top not in ("torch", "launch"), f"{path} imports {name}"
            if top == "cputrain" and folder != "launch":
                known = any(name == rule or name.startswith(f"{rule}.") for rule in allowed)
                assert known, f"{path} imports {name}"


APART = ("backends", "data", "opencl", "pool", "split")
"""Parts that know of one another only what their packages export."""


@pytest.mark.parametrize("part", [part for part in APART if (ROOT / "cputrain" / part).exists()])
def test_parts_do_not_reach_into_one_another(part: str) -> None:
    inner = tuple(f"cputrain.{other}." for other in APART if other != part)
    for path in sorted((ROOT / "cputrain" / part).rglob("*.py")):
        for name in imports_of(path):
            assert not name.startswith(inner), f"{path} imports {name}"


def imported_on_load(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the modules that a module imports when it is loaded, and those it imports for types."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from imported_on_load(getattr(node, field, []))


def package_of(module: str) -> str:
    """Return the package of cputrain that holds a module; "" for modules of others."""
    parts = module.split(".")
    return parts[1] if parts[0] == "cputrain" and len(parts) > 1 else ""


def test_packages_import_one_another_in_one_direction() -> None:
    imports: dict[str, set[str]] = {}
    for root in ("cputrain", "launch"):
        for path in (ROOT / root).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            package = package_of(module if root == "cputrain" else f"cputrain.{module}")
            names = imported_on_load(ast.parse(path.read_text()).body)
            imports.setdefault(package, set()).update(map(package_of, names))
    edges = {package: names & imports.keys() - {package} for package, names in imports.items()}
    while leaves := [package for package, names in edges.items() if not names & edges.keys()]:
        for package in leaves:
            del edges[package]
    assert {package: sorted(names & edges.keys()) for package, names in edges.items()} == {}
