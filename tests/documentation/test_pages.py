"""Every command and every example of the manual runs, and prints what its page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import record
from tests.launch.programs import environment

DOCS = Path(__file__).parents[2] / "docs"

PAGES = sorted(path for path in DOCS.rglob("*.md") if "benchmarks" not in path.parts)

WITH_COMMANDS = [path for path in PAGES if list(record.outputs(path.read_text()))]

WITH_EXAMPLES = [path for path in PAGES if "```python\n" in path.read_text()]

SHORT = ("cluster.md",)
"""A page whose commands take seconds."""


def name_of(path: Path) -> str:
    """The path of a page in the manual."""
    return str(path.relative_to(DOCS))


def page(path: Path, is_short: bool) -> object:
    return pytest.param(path, id=name_of(path), marks=[pytest.mark.long] * (not is_short))


def shortened(command: str) -> str:
    """A command with as few repetitions as possible."""
    for name, option, least in (("bench", "--repeats", "1"), ("tune", "--budget", "10s")):
        command = re.sub(rf" {option} \w+", "", command)
        command = command.replace(f"cputrain {name} ", f"cputrain {name} {option} {least} ")
    return command


PRINTED: dict[str, tuple[int, list[str]]] = {}
"""What commands have printed that stand on several pages, and write no file."""


def printed(command: str, folder: Path, scripts: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command, which runs once."""
    command = shortened(command)
    if ">" in command:
        return record.run(command, folder, scripts)
    if command not in PRINTED:
        PRINTED[command] = record.run(command, folder, scripts)
    return PRINTED[command]


def working_folder(folder: Path) -> Path:
    """A folder with the script of the tutorials, shortened."""
    work = record.working_folder(folder)
    script = work / "train.py"
    text = script.read_text()
    for long, short in (("width: int = 16", "width: int = 4"), ("default=4", "default=2")):
        assert text.count(long) == 1
        text = text.replace(long, short)
    script.write_text(text)
    return work


def words(lines: list[str]) -> set[str]:
    """The words of an output; its numbers are different in each run."""
    return set(re.findall(r"[A-Za-z_]{3,}", "\n".join(lines)))


@pytest.mark.parametrize("path", [page(path, path.name in SHORT) for path in WITH_COMMANDS])
def test_commands_print_what_the_page_shows(path: Path, tmp_path: Path, scripts: str) -> None:
    work = working_folder(tmp_path)
    for output in record.outputs(path.read_text()):
        code, lines = printed(output.command, work, scripts)
        assert code == 0, (output.command, lines)
        shown = words(output.lines)
        missing = shown - words(lines)
        # causes, candidates and CPUs are those of the machine that the page was recorded on
        said = f"{output.command} lacks {' '.join(sorted(missing))}; it printed: {lines}"
        assert len(missing) <= 0.5 * len(shown), said


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    """Under plain python: each with those before it, unless it is a script of its own."""
    examples = re.findall(r"(?ms)^```python\n(.*?)^```$", path.read_text())
    examples = [text for text in examples if "%" not in text]  # magics run in tests/notebook
    are_scripts = any("__name__" in text for text in examples)
    for number, text in enumerate(examples if are_scripts else ["".join(examples)]):
        script = tmp_path / f"example{number}.py"
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path,
            env=environment(tmp_path), check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stderr)
