"""A command line read from a table of options.

argparse would add 12 ms to every launch, drops the first "--" of what belongs to the script, and
guesses abbreviations; all three are wrong for a launcher. Options end at the first word that is
none: from there on everything is the script's, untouched.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Option(Record):
    """A command-line option."""

    flag: str
    """Long form: "--threads"."""

    help: str
    """Help text of one line."""

    short: str = ""
    """Short form: "-q"."""

    aliases: tuple[str, ...] = ()
    """Aliases, hidden from the help."""

    takes: str = ""
    """Metavariable in the help: "N|auto"; empty for a switch."""

    choices: tuple[str, ...] = ()
    """Allowed values; empty if the command validates the value itself."""


class Parsed(Record):
    """A parsed command line."""

    values: dict[str, str]
    """Given options by long form; the value of a switch is its flag."""

    rest: tuple[str, ...]
    """All words from the first positional argument on."""

    def has(self, flag: str) -> bool:
        """Return whether an option was given."""
        return flag in self.values


def parse(argv: Sequence[str], options: Sequence[Option], command: str) -> Parsed:
    """Parse options up to the first positional argument; errors suggest similar options."""
    table = {
        name: option
        for option in options
        for name in (option.flag, option.short, *option.aliases)
        if name
    }
    values: dict[str, str] = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            index += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        option = table.get(name)
        if option is None:
            raise _unknown(name, table, command)
        index += 1
        if not option.takes:
            if equals:
                raise UsageError(name, "takes no value", found=repr(value), do=f"Say {name} alone.")
            value = option.flag
        elif not equals:
            if index == len(argv):
                raise UsageError(
                    name,
                    f"needs a value ({option.takes})",
                    found="the end of the line",
                    do=f"Say {name}={option.choices[0] if option.choices else '...'}",
                )
            value = argv[index]
            index += 1
        if option.choices and value not in option.choices:
            raise UsageError(
                name,
                f"must be one of {', '.join(option.choices)}",
                found=repr(value),
                do=_suggest(value, option.choices),
            )
        values[option.flag] = value
    return Parsed(values=values, rest=tuple(argv[index:]))


def split_quoted(parsed: Parsed, flag: str) -> list[str]:
    """Split an option's value that is itself a command line."""
    value = parsed.values.get(flag)
    if not value:
        return []
    from shlex import split

    try:
        return split(value)
    except ValueError as error:
        raise UsageError(
            flag,
            "must be quoted as in a shell",
            found=f"{value!r}: {error}",
            do="Close the quotation marks.",
        ) from None


def _unknown(name: str, table: dict[str, Option], command: str) -> UsageError:
    return UsageError(
        name,
        f"is no option of cputrain {command}",
        do=_suggest(name, tuple(table))
        or f"Options of the script come after it; cputrain {command} --help lists ours.",
    )


def _suggest(word: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]}?" if close else ""


def usage(command: str, form: str, summary: str, groups: dict[str, Sequence[Option]]) -> str:
    """Return the help text of a command."""
    lines = [f"usage: cputrain {command} {form}", "", summary]
    for title, options in groups.items():
        lines += ["", f"{title}:"]
        for option in options:
            left = ", ".join(filter(None, (option.short, option.flag)))
            left = f"  {left} {option.takes}".rstrip()
            gap = "\n" + " " * 34 if len(left) > 32 else " " * (34 - len(left))
            lines.append(f"{left}{gap}{option.help}")
    return "\n".join(lines)


def whole_number(
    value: str, flag: str, *, least: int = 1, most: int = 1000, advice: str = ""
) -> int:
    """Return the value after a flag; `advice` is what to try instead."""
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise UsageError(
            flag, f"must be a whole number from {least} to {most}", found=repr(value),
            do=f"Try {advice}." if advice else "",
        )  # fmt: skip
    return int(value)
