"""Recording of a terminal, made from a real run: each line appears when it was printed."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from docs.pictures.drawing import MONO

SCRIPT = Path(__file__).parents[1] / "tutorials/train.py"

COMMANDS = ("python train.py --epochs 2", "cputrain launch train.py --epochs 2")

COLUMNS, LINE_HEIGHT, MARGIN = 88, 20, 20

TYPING_S = 0.04
"""Seconds for each letter of a command."""

FASTER = 3
"""How many times as fast as it was the recording is played."""

PAUSE_S = 4.0
"""Seconds at the end, before the recording begins again."""


class Line(NamedTuple):
    """A line of the terminal, and the second at which it appears."""

    second: float
    text: str
    is_command: bool


def picture() -> str:
    """Run the commands, and return the recording."""
    return drawn(list(recorded()))


def recorded() -> Iterator[Line]:
    """Yield the lines of the commands, one command after the other."""
    now = 0.0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SCRIPT, folder)
        for command in COMMANDS:
            yield Line(now, command, is_command=True)
            now += TYPING_S * len(command)
            begin = time.monotonic()
            for text in _run(command, folder):
                yield Line(now + time.monotonic() - begin, text, is_command=False)
            now += time.monotonic() - begin + 0.5


def _run(command: str, folder: str) -> Iterator[str]:
    """Yield the lines that a command prints on a terminal."""
    main, side = pty.openpty()
    scripts = os.path.dirname(sys.executable)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(
        command.split(), cwd=folder, env=environment, stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    with os.fdopen(main, "rb", buffering=0) as stream:
        rest = b""
        while True:
            try:
                read = stream.read(4096)
            except OSError:  # the other end is closed
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                yield re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", line.decode())
    if process.wait():
        raise RuntimeError(f"{command} ended with exit code {process.returncode}")


def drawn(lines: list[Line]) -> str:
    """Return the recording as an animated picture; without animations it shows every line."""
    total = lines[-1].second / FASTER + PAUSE_S
    rows: list[str] = []
    rules: list[str] = []
    y = 52
    for number, line in enumerate(lines):
        start = 100 * line.second / FASTER / total
        rules.append(
            f"@keyframes l{number}{{0%,{max(0.0, start - 0.01):.2f}%{{opacity:0}}"
            f"{start:.2f}%,100%{{opacity:1}}}}"
            f".l{number}{{animation:l{number} {total:.1f}s infinite}}"
        )
        for part, text in enumerate(_wrapped(line.text)):
            prompt = '<tspan fill="#7fd0e6">$ </tspan>' if line.is_command and not part else ""
            color = "#ffffff" if line.is_command else "#c9d6db"
            rows.append(
                f'<text class="l{number}" x="{MARGIN}" y="{y}" fill="{color}" '
                f'xml:space="preserve">{prompt}{escape(text)}</text>'
            )
            y += LINE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y + 4}" role="img" '
        f'font-family="{MONO}" font-size="13.5">\n'
        "<title>A terminal: python train.py, then cputrain launch train.py</title>\n"
        "<style>@media screen and (prefers-reduced-motion: no-preference){"
        f"{''.join(rules)}}}</style>\n"
        f'<rect width="760" height="{y + 4}" rx="8" fill="#10242c"/>\n'
        '<circle cx="22" cy="20" r="5" fill="#b8581b"/><circle cx="40" cy="20" r="5" '
        'fill="#c2a23a"/><circle cx="58" cy="20" r="5" fill="#4b7a2b"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ") or [""]
