"""The examples run as they are, under plain python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))

IMPORTS_US = {"byte_patterns", "search", "seeds"}
"""Show what nothing in torch can stand for; the others run without cputrain installed."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_shows_its_loss(example):
    ended = subprocess.run(
        [sys.executable, str(example), "--steps", "2"],
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"} if sys.platform == "win32" else None,
    )
    assert ended.returncode == 0, ended.stderr
    assert "loss" in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_plain(example):
    lines = example.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    ours = any(line.startswith(("import cputrain", "from cputrain")) for line in lines)
    assert ours == (example.stem in IMPORTS_US)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_listed_in_the_readme(example):
    assert f"({example.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_data_of_the_bytes_is_that_of_its_counterpart():
    """So that the comparison of both compares the same work."""
    twin = Path(__file__).parent.parent / "cputrain/bench/workloads/byte_patterns_torch.py"
    made = []
    for script in (FOLDER / "byte_patterns.py", twin):
        ended = subprocess.run(
            [sys.executable, str(script), "--steps", "1"],
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        made += re.findall(r"recordings made .*\((\w+)\)|loss (\S+)", ended.stdout)
    assert len(made) == 4
    assert made[:2] == made[2:]


def test_there_are_examples():
    assert "paint" in [example.stem for example in EXAMPLES]
