"""The man page, made from the tables of options.

`python -m cputrain.launch.man_page > docs/cputrain.1` writes it anew.
"""

from __future__ import annotations

from cputrain.launch.cli import VERBS
from cputrain.launch.commands import every_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.launch.command import Command
    from cputrain.launch.options import Option

HEAD = """\
.TH CPUTRAIN 1 "" "cputrain" "User Commands"
.SH NAME
cputrain \\- makes PyTorch training on CPUs fast without changes to the script
.SH SYNOPSIS
.B cputrain
.I COMMAND
.RI [ options ]
.SH DESCRIPTION
"""

EXIT_CODES = (
    ("0", "success; of launch: the exit code of the script"),
    ("1", "an error while a command ran; of verify: something differs"),
    ("2", "an argument, an option, a variable or the script is invalid"),
    ("125", "the script could not be started, by a fault of the launcher"),
    ("126", "the script or command exists, but cannot be run"),
    ("127", "the script, a command, a file or a package does not exist"),
    ("130", "interrupted by Ctrl-C"),
    ("141", "the reader of standard output has closed it"),
    ("128 + n", "signal n ended the script, as the shell reports it"),
)
"""Exit codes and their meaning, for the man page and the manual."""

FILES = (
    ("cputrain.toml", "settings of a project, in its folder or above the working folder"),
    ("pyproject.toml", "the same, in the table tool.cputrain"),
    ("~/.config/cputrain/config.toml", "settings of a user"),
)
"""Files that are read."""


def page() -> str:
    """Return the man page in the language of man(7)."""
    lines = [HEAD.rstrip()]
    for verb, summary in VERBS.items():
        lines += _item(f"cputrain {verb}", summary)
    for command in every_command():
        lines += _section(command)
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += _item(code, meaning)
    lines.append(".SH FILES")
    for name, meaning in FILES:
        lines += _item(name, meaning)
    lines += [".SH SEE ALSO", ".BR python (1),", ".BR taskset (1),", ".BR numactl (8)"]
    return "\n".join(lines) + "\n"


def _section(command: Command) -> Iterator[str]:
    yield f".SH {_escaped(command.full_name.upper())}"
    yield f".B {_escaped(command.full_name)}"
    yield _escaped(command.form)
    for paragraph in command.summary.split("\n\n"):
        yield ".PP"
        yield _escaped(paragraph)
    for name, text in command.notes:
        yield from _item(name, text)
    for group in command.groups:
        yield f".SS {_escaped(group.title)}"
        for option in group.options:
            yield from _option(option)
    if command.examples:
        yield ".SS Examples"
    for example in command.examples:
        yield from _item(example.line, example.does)


def _option(option: Option) -> Iterator[str]:
    names = ", ".join(rf"\fB{_escaped(name)}\fR" for name in option.names)
    yield ".TP"
    yield rf"{names} \fI{_escaped(option.takes)}\fR" if option.takes else names
    yield _escaped(option.help)


def _item(name: str, text: str) -> list[str]:
    return [".TP", rf"\fB{_escaped(name)}\fR", _escaped(text)]


def _escaped(text: str) -> str:
    """Return a text that man(7) prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    print(page(), end="")
