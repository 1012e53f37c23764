"""Magics %cputrain_setup and %cputrain_tune, with the options of the command line."""

from __future__ import annotations

from cputrain.errors import CputrainError, UsageError
from cputrain.launch.command import Command, Group
from cputrain.launch.commands import tune
from cputrain.launch.commands.launch import VALUE_GROUPS
from cputrain.launch.options import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.notebook.outcome import NotebookTuning, SetupResult

SETUP_OPTIONS = (
    Option(flag="--so-far", help="change nothing; list what was applied until now, and to what"),
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

SETUP = Command(
    name="setup",
    prefix="%cputrain_",
    form="[options]",
    summary="Applies what cputrain launch applies, as far as a running process allows.",
    groups=(Group(title="Options", options=SETUP_OPTIONS), *VALUE_GROUPS),
)

TUNE = Command(
    name="tune",
    prefix="%cputrain_",
    form="[options] script.py [its arguments], or a cell under it",
    summary="Runs the script or the cell repeatedly for some steps, each time in a new process "
    "under another plan, and finds the fastest that learns as plain python does. A setting that "
    "is given stays in every plan; --precision bf16 allows reduced precision.",
    groups=(Group(title="Options", options=TUNE_OPTIONS), *VALUE_GROUPS),
)


def cputrain_setup(line: str) -> SetupResult | None:
    """Apply what still can be applied of cputrain's plan, as in %cputrain_setup --threads 4."""
    result: SetupResult | None = _report_errors("setup", lambda: _setup(_split(line)))
    return result


def tune_magic(shell: Any) -> Callable[[str, str | None], NotebookTuning | None]:
    """Return the function behind %cputrain_tune and %%cputrain_tune.

    Args:
        shell: IPython's shell, which has the earlier inputs that `--cells` names.
    """

    def cputrain_tune(line: str, cell: str | None = None) -> NotebookTuning | None:
        """Measure plans on a cell, or on a script, as in %cputrain_tune train.py."""
        result: NotebookTuning | None = _report_errors(
            "tune", lambda: _tune(shell, _split(line), cell)
        )
        return result

    return cputrain_tune


def _setup(words: list[str]) -> SetupResult | None:
    from cputrain.notebook.running import setup_from_options
    from cputrain.runtime.state import NOW

    parsed = SETUP.read(words)
    if parsed is None:
        return None
    if parsed.rest:
        raise UsageError(
            "%cputrain_setup",
            "takes only options",
            found=repr(parsed.rest[0]),
            do="Say for example: %cputrain_setup --threads 4",
        )
    if parsed.has("--so-far"):
        texts = [text for applied in NOW.applied.values() if (text := applied.describe())]
        print(f"cputrain: {', '.join(texts) or 'nothing was applied yet'}")
        return None
    return setup_from_options(parsed, {})


def _tune(shell: Any, words: list[str], cell: str | None) -> NotebookTuning | None:
    from cputrain.notebook.tuning import tune_cell, tune_script

    parsed = TUNE.read(words)
    if parsed is None:
        return None
    return tune_script(shell, parsed) if cell is None else tune_cell(shell, parsed, cell)


def _split(line: str) -> list[str]:
    from shlex import split

    try:
        return split(line)
    except ValueError as error:
        raise UsageError(
            "the line", "must be quoted as in a shell", found=f"{line!r}: {error}",
            do="Close the quotation marks.",
        ) from None  # fmt: skip


def _report_errors(verb: str, action: Callable[[], Any]) -> Any:
    """Call the action; raise errors of cputrain as IPython's UsageError, shown in one line."""
    from IPython.core.error import UsageError as IPythonUsageError

    try:
        return action()
    except CputrainError as error:
        raise IPythonUsageError(_with_magic_names(verb, str(error))) from None
    except KeyboardInterrupt:
        print("cputrain: interrupted before anything was measured")
        return None


def _with_magic_names(verb: str, text: str) -> str:
    """Replace the command in a message by the magic: "cputrain tune" by "%cputrain_tune"."""
    return text.replace(f"cputrain {verb}", f"%cputrain_{verb}")
