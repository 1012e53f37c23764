"""Tables on a rich console that honors NO_COLOR, FORCE_COLOR and COLUMNS."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

    from rich.console import Console


def console(stream: TextIO | None = None, *, aside: bool = False, plain: bool = False) -> Console:
    """Return a rich console on a stream, 120 columns wide if the stream is not a terminal.

    Args:
        stream: Standard output by default.
        aside: Raise BrokenPipeError on a closed pipe, where rich would exit the process.
        plain: Write no escape codes, even if FORCE_COLOR is set.
    """
    from rich.console import Console

    class RaisingConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = stream or sys.stdout
    if not stream.isatty():
        stream = WithoutPadding(stream)  # type: ignore[assignment]
    is_forced = os.environ.get("FORCE_COLOR", "") not in ("", "0")
    width = None if stream.isatty() or os.environ.get("COLUMNS") else 120
    return (RaisingConsole if aside else Console)(
        file=stream,
        force_terminal=False if plain else is_forced or None,
        force_jupyter=False,  # otherwise rich bypasses the stream in a notebook
        width=width,
        highlight=False,
        emoji=False,
    )


class WithoutPadding:
    """Text stream that leaves out spaces at the ends of lines, with which rich fills tables.

    Args:
        stream: Where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text without the spaces before its line ends."""
        lines = text.split("\n")
        self._stream.write("\n".join([*(line.rstrip(" ") for line in lines[:-1]), lines[-1]]))
        return len(text)


def show_pairs(out: Console, title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print a heading and lines of name and value; a value of None is omitted."""
    from rich.table import Table
    from rich.text import Text

    rows = [(name, value) for name, value in pairs if value is not None]
    if not rows:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=14)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    out.print(Text(title, style="bold"))
    out.print(table)


def show_table(
    out: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = ""
) -> None:
    """Print a table with a line below its header."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, expand=False
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
