"""The examples run as they are, under plain python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_shows_its_loss(example):
    ended = subprocess.run(
        [sys.executable, str(example), "--steps", "2"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "loss" in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_plain(example):
    lines = example.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert not any(line.startswith(("import cputrain", "from cputrain")) for line in lines)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_listed_in_the_readme(example):
    assert f"({example.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_there_are_examples():
    assert "paint" in [example.stem for example in EXAMPLES]
