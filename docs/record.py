"""Outputs of commands in the manual: `python -m docs.record PAGE ...` runs and writes them anew.

In a block of type `console`, a line that begins with `$` is a command, and the lines below it are
what it prints. A page's commands run in one folder, with `train.py` of the tutorials in it.
Commands that install something, or need another program, are not run. An output whose last line is
"…" keeps its number of lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent

BLOCK = re.compile(r"(?ms)^(?P<indent> *)```console\n(?P<body>.*?)^ *```$")

NOT_RUN = ("pip ", "uv ", "docker ", "cputrain launch --cmd -- jupyter", "cputrain completions zsh")
"""Beginnings of commands that are not run."""

LEFT_OUT = "…"
"""Last line of an output that is shown in part."""

WIDTH = "80"
"""Columns of tables."""


class Output(NamedTuple):
    """A command of a page, and the lines below it."""

    command: str
    lines: list[str]


def outputs(page: str) -> Iterator[Output]:
    """Yield the commands of a page that are run."""
    for block in BLOCK.finditer(page):
        for output in _outputs_of(block):
            if not output.command.startswith(NOT_RUN):
                yield output


def _outputs_of(block: re.Match[str]) -> list[Output]:
    found: list[Output] = []
    for line in block["body"].splitlines():
        text = line.removeprefix(block["indent"])
        if text.startswith("$ "):
            found.append(Output(text[2:].partition("    #")[0], []))
        elif found:
            found[-1].lines.append(text)
    return found


def run(command: str, folder: Path, scripts: str) -> tuple[int, list[str]]:
    """Return the exit code of a command, and the lines that it prints.

    Args:
        command: Command line, for a shell.
        folder: Working folder.
        scripts: Folder of `python` and `cputrain`.
    """
    home = folder.parent / "home"
    environment = {
        **os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": WIDTH,
        "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, [line.rstrip() for line in done.stdout.strip("\n").splitlines()]


def working_folder(folder: Path) -> Path:
    """Return a folder with the script of the tutorials."""
    work = folder / "work"
    work.mkdir()
    (folder / "home").mkdir()
    shutil.copy(DOCS / "tutorials/train.py", work)
    return work


def written_anew(page: str) -> str:
    """Return a page with the outputs of its commands, run now."""
    with tempfile.TemporaryDirectory() as folder:
        work = working_folder(Path(folder))

        def with_outputs(block: re.Match[str]) -> str:
            indent = block["indent"]
            lines = [f"{indent}```console"]
            for output in _outputs_of(block):
                printed = output.lines
                if not output.command.startswith(NOT_RUN):
                    code, printed = run(output.command, work, os.path.dirname(sys.executable))
                    if code:
                        raise SystemExit(f"{output.command} ended with {code}: {printed}")
                    if output.lines[-1:] == [LEFT_OUT] and len(output.lines) <= len(printed):
                        printed = [*printed[: len(output.lines) - 1], LEFT_OUT]
                lines += [f"{indent}{line}".rstrip() for line in (f"$ {output.command}", *printed)]
            return "\n".join([*lines, f"{indent}```"])

        return BLOCK.sub(with_outputs, page)


def main() -> None:
    """Write each page with new outputs."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(written_anew(path.read_text()))


if __name__ == "__main__":
    main()
