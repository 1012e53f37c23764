"""%cputrain_setup and %cputrain_tune: the command line's options, in a notebook."""

from __future__ import annotations

from cputrain.errors import CputrainError, UsageError
from cputrain.launch.commands import tune
from cputrain.launch.commands.launch import KNOB_OPTIONS
from cputrain.launch.options import Option, parse, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.notebook.outcome import Setup, Tuning

HELP = Option(flag="--help", short="-h", help="show this help and exit")

SETUP_OPTIONS = (
    Option(flag="--so-far", help="change nothing; say what was applied to what until now"),
    HELP,
)

TUNE_OPTIONS = (
    Option(flag="--cells", takes="RANGE", help="earlier inputs to put before the cell: 1-4"),
    Option(
        flag="--apply",
        takes="yes|no",
        choices=("yes", "no"),
        help="apply the fastest to this process, too (default: yes for a cell, no for a script)",
    ),
    *(option for option in tune.OPTIONS if option.flag != "--json"),
)


def cputrain_setup(line: str) -> Setup | None:
    """Apply what still can be applied of cputrain's plan: %cputrain_setup --threads 4"""
    found: Setup | None = _told("setup", lambda: _setup(_words(line)))
    return found


def tune_magic(shell: Any) -> Callable[[str, str | None], Tuning | None]:
    """%cputrain_tune and %%cputrain_tune for a shell, which knows its earlier inputs."""

    def cputrain_tune(line: str, cell: str | None = None) -> Tuning | None:
        """Measure plans on a cell, or on a script: %cputrain_tune train.py"""
        found: Tuning | None = _told("tune", lambda: _tune(shell, _words(line), cell))
        return found

    return cputrain_tune


def _setup(words: list[str]) -> Setup | None:
    from cputrain.notebook.running import set_up
    from cputrain.runtime.state import NOW

    parsed = parse(words, (*SETUP_OPTIONS, *KNOB_OPTIONS), "setup")
    if parsed.has("--help"):
        print(_spelled("setup", usage(
            "setup", "[options]",
            "Applies to this process what still can be applied of what cputrain launch does.",
            {"options": SETUP_OPTIONS, "settings": KNOB_OPTIONS},
        )))  # fmt: skip
        return None
    if parsed.rest:
        raise UsageError(
            "%cputrain_setup",
            "takes options alone",
            found=repr(parsed.rest[0]),
            do="Say for example: %cputrain_setup --threads 4",
        )
    if parsed.has("--so-far"):
        said = [said for one in NOW.applied.values() if (said := one.describe())]
        print(f"cputrain: {', '.join(said) or 'nothing was applied yet'}")
        return None
    return set_up(parsed, {})


def _tune(shell: Any, words: list[str], cell: str | None) -> Tuning | None:
    from cputrain.notebook.tuning import tune_cell, tune_script

    parsed = parse(words, (*TUNE_OPTIONS, *KNOB_OPTIONS), "tune")
    if parsed.has("--help"):
        print(_spelled("tune", usage(
            "tune", "[options] script.py [its arguments], or a cell under it",
            "Runs the script or the cell again and again for some steps, each time in a fresh\n"
            "process and under another plan, and finds the fastest that learns as plain python\n"
            "does. A setting that is given stays; --precision bf16 allows fewer bits.",
            {"options": TUNE_OPTIONS, "settings": KNOB_OPTIONS},
        )))  # fmt: skip
        return None
    return tune_script(shell, parsed) if cell is None else tune_cell(shell, parsed, cell)


def _words(line: str) -> list[str]:
    from shlex import split

    try:
        return split(line)
    except ValueError as error:
        raise UsageError(
            "the line", "must be quoted as in a shell", found=f"{line!r}: {error}",
            do="Close the quotation marks.",
        ) from None  # fmt: skip


def _told(verb: str, act: Callable[[], Any]) -> Any:
    """What it returns; an error of ours is one message, as IPython shows those about usage."""
    from IPython.core.error import UsageError as Shown

    try:
        return act()
    except CputrainError as error:
        raise Shown(_spelled(verb, str(error))) from None
    except KeyboardInterrupt:
        print("cputrain: interrupted before anything was measured")
        return None


def _spelled(verb: str, text: str) -> str:
    """A message with the magic in the place of the command."""
    return text.replace(f"cputrain {verb}", f"%cputrain_{verb}")
