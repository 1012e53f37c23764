"""What can be completed: each command with its options, words and files."""

from __future__ import annotations

from cputrain.launch.cli import VERBS
from cputrain.launch.commands import every_command
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.launch.options import Option


class Row(Record):
    """A command as completions know it."""

    name: str
    """Verb."""

    summary: str
    """Summary of one line."""

    options: tuple[Option, ...] = ()
    """All options."""

    words: tuple[str, ...] = ()
    """Words that may be given instead of a file."""

    files: str = ""
    """Pattern of the files that may be given; empty for none."""


def every_row() -> list[Row]:
    """Return a row for each command, `help` and `version` included."""
    rows = [
        Row(
            name=command.name,
            summary=VERBS[command.name],
            options=command.options,
            words=command.words,
            files=command.files,
        )
        for command in every_command()
    ]
    rows.append(Row(name="help", summary="show the options of a command", words=tuple(VERBS)))
    rows.append(Row(name="version", summary="print the version"))
    return rows
