"""Command-line parser for a table of options; the rest of the line belongs to the script.

argparse would add 12 ms to every launch, drop the first "--" of the script's arguments, and accept
abbreviations; all three are wrong for a launcher. Options end at the first word that is not an
option: it and all later words are left unchanged.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.settings.core.decision import UserValue
from cputrain.settings.core.values import parse_count

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
    options_by_name = {
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
        option = options_by_name.get(name)
        if option is None:
            raise _unknown(name, options_by_name, command)
        index += 1
        if not option.takes:
            if equals:
                raise UsageError(name, "takes no value", found=repr(value), do=f"Use {name} alone.")
            value = option.flag
        elif not equals:
            if index == len(argv):
                raise UsageError(
                    name,
                    f"needs a value ({option.takes})",
                    found="the end of the command line",
                    do=f"For example: {name}={option.choices[0] if option.choices else '...'}",
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
    """Split the value of an option that is itself a command line, as a shell would."""
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


def _unknown(name: str, options_by_name: dict[str, Option], command: str) -> UsageError:
    return UsageError(
        name,
        f"is not an option of cputrain {command}",
        do=_suggest(name, tuple(options_by_name))
        or f"The script's options come after its name. See: cputrain {command} --help",
    )


def _suggest(word: str, known: tuple[str, ...]) -> str:
    """Return a question that names the most similar known word; "" if there is none."""
    from difflib import get_close_matches

    matches = get_close_matches(word, known, n=1)
    return f"Did you mean {matches[0]}?" if matches else ""


def usage(command: str, form: str, summary: str, groups: dict[str, Sequence[Option]]) -> str:
    """Return the help text of a command.

    Args:
        form: The words after the command's name: "[options] script.py".
        groups: Options by the title of their group.
    """
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
    """Parse an option's value as a whole number between `least` and `most`.

    Args:
        advice: An example value for the error message.

    Raises:
        UsageError: The value is not such a number.
    """
    return parse_count(
        UserValue(value=value, where=flag),
        f"must be a whole number from {least} to {most}",
        least=least,
        most=most,
        advice=f"Try {advice}." if advice else "",
    )
