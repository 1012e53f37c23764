"""Command-line parser for a table of options; the rest of the line belongs to the script.

argparse would add 12 ms to every launch, drop the first "--" of the script's arguments, and accept
abbreviations; all three are wrong for a launcher. Options end at the first word that is not an
option: it and all later words are left unchanged.
"""

from __future__ import annotations

import os

from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.settings.core.decision import UserValue
from cputrain.settings.core.values import parse_count
from cputrain.suggestions import value_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


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

    implied: str = ""
    """Value if none follows: "on" for --learn; empty if a value must follow.

    Without `choices`, a number and the words of `takes` are values.
    """

    is_advanced: bool = False
    """Whether only --help-all shows it."""

    is_repeatable: bool = False
    """Whether it may be given several times, each with a value."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the help shows: "-q" and "--quiet"."""
        return (self.short, self.flag) if self.short else (self.flag,)

    @property
    def words(self) -> tuple[str, ...]:
        """Values that are words: "auto" of "N|auto"."""
        return self.choices or tuple(
            word for word in self.takes.split("|") if word.isalnum() and word.islower()
        )


class Parsed(Record):
    """A parsed command line."""

    values: dict[str, str]
    """Given options by long form; the value of a switch is its flag."""

    rest: tuple[str, ...]
    """All words from the first positional argument on."""

    repeated: dict[str, tuple[str, ...]] = {}
    """All values of options that may be given several times."""

    def has(self, flag: str) -> bool:
        """Return whether an option was given."""
        return flag in self.values

    def all(self, flag: str) -> tuple[str, ...]:
        """Return all values of an option that may be given several times."""
        return self.repeated.get(flag, ())


def parse(argv: Sequence[str], options: Sequence[Option], command: str) -> Parsed:
    """Parse options up to the first positional argument; errors suggest similar options.

    Args:
        argv: Words after the command's name.
        options: Options that the command has.
        command: The command for error messages: "cputrain launch".

    Raises:
        UsageError: A word is not an option, or its value is missing or not accepted.
    """
    options_by_name = {
        name: option
        for option in options
        for name in (option.flag, option.short, *option.aliases)
        if name
    }
    values: dict[str, str] = {}
    repeated: dict[str, tuple[str, ...]] = {}
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
        elif option.implied and not equals and not _is_value(argv[index : index + 1], option):
            value = option.implied
        elif not equals:
            if index == len(argv):
                raise UsageError(
                    name,
                    f"needs a value ({option.takes})",
                    found="the end of the command line",
                    do=f"For example: {name}={_example(option)}",
                )
            value = argv[index]
            index += 1
            _check_is_no_script(name, value, option, command)
        if option.choices and value not in option.choices:
            raise UsageError(
                name,
                f"must be one of {', '.join(option.choices)}",
                found=repr(value),
                do=value_hint(value, option.choices),
            )
        values[option.flag] = value
        if option.is_repeatable:
            repeated[option.flag] = (*repeated.get(option.flag, ()), value)
    return Parsed(values=values, rest=tuple(argv[index:]), repeated=repeated)


def _is_value(words: Sequence[str], option: Option) -> bool:
    if option.choices:
        return any(word in option.choices for word in words)
    return any(word in option.words or word.isdigit() for word in words)


def _example(option: Option) -> str:
    first = option.takes.partition("|")[0].strip("'")
    if option.choices:  # "auto" is what happens without the option
        return next(choice for choice in (*option.choices[1:], *option.choices) if choice != "auto")
    return {"N": "2", "TIME": "2m"}.get(first, first)


def _check_is_no_script(name: str, value: str, option: Option, command: str) -> None:
    """Raise UsageError if the word after an option is a script, as in: --threads train.py."""
    if option.takes != "SCRIPT" and value.endswith(".py") and os.path.isfile(value):
        raise UsageError(
            name,
            f"needs a value ({option.takes})",
            found=f"the script {value}",
            do=f"For example: {command} {name}={_example(option)} {value}",
        )


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


def _unknown(name: str, known: Collection[str], command: str) -> UsageError:
    from cputrain.launch.hints import option_hint

    return UsageError(
        name,
        f"is not an option of {command}",
        do=option_hint(name, known)
        or f"The script's options come after its name. See: {command} --help",
    )


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
