"""Search for the fastest plan of cells or a script in a notebook, and apply the winner."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager

from cputrain.errors import UsageError
from cputrain.launch.commands import tune
from cputrain.machine import RootSource, read_machine
from cputrain.notebook.cells import earlier_inputs, make_script
from cputrain.notebook.outcome import NotebookTuning, SetupResult
from cputrain.notebook.running import NO_OPTIONS, remember_winner, setup_from_options
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.tune.result import SearchResult, Watcher

FRESH_PROCESS = "it runs in a new process, without the cells before it"


def tune_script(shell: Any, parsed: Parsed) -> NotebookTuning:
    """Search for a script's fastest plan and store it, as `cputrain tune` does.

    Args:
        shell: IPython's shell.
        parsed: Options of the magic's line, and the script; `--apply yes` applies the winner.
    """
    if not parsed.rest:
        raise UsageError(
            "%cputrain_tune",
            "needs a script, or a cell under it",
            do="Say: %cputrain_tune train.py, or begin a cell with: %%cputrain_tune",
        )
    script = tune.script_target(parsed, tune.COMMAND, "%cputrain_tune")
    result = _search(shell, parsed, script)
    kept_in = tune.save_tuned(script, read_machine(RootSource(), detail=False), result)
    if parsed.values.get("--apply") != "yes":
        return NotebookTuning(result=result, kept_in=kept_in)
    remember_winner(result, "%cputrain_tune")
    return NotebookTuning(result=result, kept_in=kept_in, applied=_apply_winner(parsed))


def tune_cell(shell: Any, parsed: Parsed, cell: str) -> NotebookTuning:
    """Search for the fastest plan of a cell, and of the earlier inputs that `--cells` names.

    The winner is used by later setups, and applied now unless `--apply no` is given.

    Args:
        shell: IPython's shell.
        parsed: Options of the magic's line.
        cell: Source of the cell.
    """
    if parsed.rest:
        raise UsageError(
            "%%cputrain_tune",
            "takes a cell and no script",
            found=repr(parsed.rest[0]),
            do="To tune a script, use the line magic: %cputrain_tune train.py",
        )
    ranges = parsed.values.get("--cells")
    earlier = [earlier_inputs(shell, ranges)] if ranges else []
    text, left_out = make_script(shell, [*earlier, cell])
    with _temporary_script(text) as path:
        script = Target(kind=TargetKind.SCRIPT, name=path, arguments=())
        try:
            result = _search(shell, parsed, script)
        except UsageError as error:
            raise _error_about_cell(error, path) from None
    remember_winner(result, "%%cputrain_tune")
    applied = None if parsed.values.get("--apply") == "no" else _apply_winner(parsed)
    return NotebookTuning(result=result, applied=applied, left_out=tuple(left_out))


def _search(shell: Any, parsed: Parsed, script: Target) -> SearchResult:
    machine = read_machine(RootSource())
    with _watcher(shell) as watcher:
        return tune.search_with_options(parsed, script, machine, watcher)


def _apply_winner(parsed: Parsed) -> SetupResult:
    """Apply the remembered winner to this process, with the settings of the magic's line."""
    # these settings were fixed in every trial, except --precision, which only sets a limit
    values = {
        flag: value for flag, value in parsed.values.items() if flag in _FLAGS - {"--precision"}
    }
    return setup_from_options(NO_OPTIONS.replace(values=values), {})


_FLAGS = {setting.flag for setting in USER_SETTINGS.values()}


@contextmanager
def _temporary_script(text: str) -> Iterator[str]:
    """Write a script to a private temporary folder; at the end remove all traces of its trials."""
    from cputrain.tune.folders import trials_path

    with tempfile.TemporaryDirectory(prefix="cputrain-cell-") as folder:
        path = os.path.join(folder, "cell.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            yield path
        finally:
            shutil.rmtree(trials_path(path), ignore_errors=True)


def _error_about_cell(error: UsageError, path: str) -> UsageError:
    """Return an error about the temporary script as an error about the cell; others unchanged."""
    if error.parameter != f"the script {path}":
        return error
    if "NameError" in error.found:
        return UsageError(
            "the cell",
            f"must define all that it uses: {FRESH_PROCESS}",
            found=error.found,
            do="Put the cells that it needs before it: %%cputrain_tune --cells 1-4",
        )
    return UsageError(
        "the cell",
        error.rule,
        found=error.found,
        do="--steps asks for fewer. Run the cell by itself to see more.",
    )


def _watcher(shell: Any) -> AbstractContextManager[Watcher]:
    """Return a table that is updated in a notebook; elsewhere the terminal's progress display."""
    if getattr(shell, "kernel", None) is None:
        from cputrain.report.trials import watcher

        return watcher()
    from cputrain.notebook.progress import ProgressTable

    return ProgressTable()
