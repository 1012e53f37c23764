"""Commands as data: options in groups, examples, and the texts of --help and --help-all.

Completions and the man page are made from the same tables.
"""

from __future__ import annotations

from cputrain.launch.options import Option, parse
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cputrain.launch.options import Parsed

HELP = Option(flag="--help", short="-h", help="show this help and exit")

HELP_ALL = Option(flag="--help-all", help="show all options and exit")

INDENT = 30
"""Column of the descriptions in a help text."""

LEAST_TEXT = 24
"""Least number of columns for a description beside a name."""

WIDEST = 100
"""Upper bound of the width of a help text: longer lines are hard to read."""


class Group(Record):
    """Options under a title."""

    title: str
    """Title, without a colon: "What to run"."""

    options: tuple[Option, ...]
    """Options, in the order of the help."""


class Example(Record):
    """A command line and what it does."""

    line: str
    """Command line: "cputrain launch train.py"."""

    does: str
    """What it does, in a few words."""


class Command(Record):
    """A command: what it does, and its options."""

    name: str
    """Words after `cputrain`: "launch", or "bench loaders"."""

    form: str
    """Words after the name: "[options] script.py [its arguments]"."""

    summary: str
    """What it does, in one paragraph or several."""

    groups: tuple[Group, ...]
    """Options in groups, without those that show the help."""

    examples: tuple[Example, ...] = ()
    """Examples for the help."""

    files: str = ""
    """Pattern of the files that it takes, for completions: "*.py"."""

    words: tuple[str, ...] = ()
    """Words that it takes in the place of a file."""

    notes: tuple[tuple[str, str], ...] = ()
    """Names and descriptions below the summary: the cases of a benchmark."""

    notes_title: str = ""
    """Title of the notes."""

    prefix: str = "cputrain "
    """What stands before the name: "%cputrain_" for a magic of a notebook."""

    @property
    def full_name(self) -> str:
        """The command as users type it: "cputrain launch"."""
        return self.prefix + self.name

    @property
    def options(self) -> tuple[Option, ...]:
        """All options, those that show the help included."""
        in_groups = [option for group in self.groups for option in group.options]
        return (*in_groups, HELP, HELP_ALL) if self.has_advanced else (*in_groups, HELP)

    @property
    def has_advanced(self) -> bool:
        """Whether --help leaves options out."""
        return any(option.is_advanced for group in self.groups for option in group.options)

    def read(self, argv: Sequence[str]) -> Parsed | None:
        """Parse the words after the name; print the help and return None if they ask for it.

        Raises:
            UsageError: A word is not an option of this command, or its value is not accepted.
        """
        parsed = parse(argv, self.options, self.full_name)
        if parsed.has(HELP.flag) or parsed.has(HELP_ALL.flag):
            print(self.help(full=parsed.has(HELP_ALL.flag)))
            return None
        return parsed

    def help(self, *, full: bool = False, width: int | None = None) -> str:
        """Return the text of --help, or of --help-all if `full`.

        Args:
            full: Whether to include the advanced options.
            width: Width of the text; None for that of the terminal.
        """
        width = min(width or terminal_width(), WIDEST)
        lines = [*_wrapped(f"Usage: {self.full_name} {self.form}", width, len("Usage: ")), ""]
        for paragraph in self.summary.split("\n\n"):
            lines += [*_wrapped(paragraph, width), ""]
        if self.notes:
            lines += _section(self.notes_title, self.notes, width)
        if self.examples:
            pairs = [(example.line, example.does) for example in self.examples]
            longest = max(len(example.line) for example in self.examples)
            lines += _section("Examples", pairs, width, indent=longest + 4)
        for group in self.groups:
            shown = [option for option in group.options if full or not option.is_advanced]
            lines += _section(group.title, map(_named, shown), width) if shown else []
        shown = [HELP, HELP_ALL] if self.has_advanced else [HELP]
        lines += _section("Help", map(_named, shown), width)
        if self.has_advanced and not full:
            total = len(self.options)
            lines += _wrapped(f"All {total} options: {self.full_name} --help-all", width)
        return "\n".join(lines).rstrip()


def _named(option: Option) -> tuple[str, str]:
    return f"{', '.join(option.names)} {option.takes}".rstrip(), option.help


def _section(
    title: str, pairs: Iterable[tuple[str, str]], width: int, indent: int = INDENT
) -> list[str]:
    """Return lines with a title, and under it each name with its description."""
    lines = [line for name, text in pairs for line in described(f"  {name}", text, width, indent)]
    return [*_wrapped(f"{title}:", width), *lines, ""]


def described(name: str, text: str, width: int, indent: int = INDENT) -> list[str]:
    """Return a name and its description in lines: beside one another, or below if it is long."""
    indent = min(indent, max(4, width - LEAST_TEXT))
    lines = _wrapped(text, width, indent, indent)
    if len(name) + 2 <= indent:
        return [name.ljust(indent) + lines[0].lstrip(), *lines[1:]]
    return [name, *lines]


def _wrapped(text: str, width: int, indent: int = 0, first: int = 0) -> list[str]:
    """Return the lines of a paragraph, all but the first with an indent."""
    from textwrap import wrap

    return wrap(
        text, width, initial_indent=" " * first, subsequent_indent=" " * indent,
        break_on_hyphens=False, break_long_words=False,
    ) or [""]  # fmt: skip


def terminal_width() -> int:
    """Return the number of columns of the terminal, or of the variable COLUMNS; else 80."""
    from shutil import get_terminal_size

    return get_terminal_size((80, 24)).columns
