"""Examples of docstrings run, and print what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cputrain
from tests.launch.programs import environment

NAMES = [name for name in cputrain.__all__ if name != "__version__"]

RUN = """
import __main__, doctest, sys
import cputrain
public = getattr(cputrain, sys.argv[1])
parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
example = parser.get_doctest(public.__doc__, vars(__main__), sys.argv[1], None, 0)
example.globs = vars(__main__)  # not a copy of it
runner.run(example, clear_globs=False)
print(runner.tries, "examples")
sys.exit(runner.failures)
"""
"""Run as a script, so that workers find functions of an example."""


@pytest.mark.parametrize("name", NAMES)
def test_examples_print_what_they_show(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(RUN)
    done = subprocess.run(
        [sys.executable, str(path), name], capture_output=True, text=True,
        env=environment(tmp_path), check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-2]) >= 2


def test_examples_that_are_wrong_are_found(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(RUN.replace("public.__doc__", "'>>> 1 + 1\\n3\\n'"))
    done = subprocess.run([sys.executable, str(path), "Pool"], capture_output=True, check=False)
    assert done.returncode == 1
