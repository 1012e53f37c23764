"""A search on cells or a script, from within a notebook; what it found is for this process, too."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager

from cputrain.errors import UsageError
from cputrain.launch import target
from cputrain.launch.commands import tune
from cputrain.machine import RootSource, read_machine
from cputrain.notebook.cells import earlier_inputs, script_of
from cputrain.notebook.outcome import Setup, Tuning
from cputrain.notebook.running import NOTHING_SAID, remember, set_up
from cputrain.plan.policies import KNOBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.tune.found import Found, Watcher

HOLDS = "a cell runs in a fresh process, which knows nothing of the cells before it"


def tune_script(shell: Any, parsed: Parsed) -> Tuning:
    """As `cputrain tune` does, and kept as it keeps it."""
    if not parsed.rest:
        raise UsageError(
            "%cputrain_tune",
            "needs a script, or a cell under it",
            do="Say: %cputrain_tune train.py, or begin a cell with: %%cputrain_tune",
        )
    what = tune.script_target(parsed, "%cputrain_tune")
    found = _search(shell, parsed, what)
    kept = tune.save_tuned(what, read_machine(RootSource(), detail=False), found)
    if parsed.values.get("--apply") != "yes":
        return Tuning(found=found, kept_in=kept)
    remember(found, "%cputrain_tune")
    return Tuning(found=found, kept_in=kept, applied=_applied(parsed))


def tune_cell(shell: Any, parsed: Parsed, cell: str) -> Tuning:
    """On a script made of the cell, and of those that --cells puts before it."""
    if parsed.rest:
        raise UsageError(
            "%%cputrain_tune",
            "takes a cell and no script",
            found=repr(parsed.rest[0]),
            do="A script is tuned by a line of its own: %cputrain_tune train.py",
        )
    ranges = parsed.values.get("--cells")
    before = [earlier_inputs(shell, ranges)] if ranges else []
    text, left_out = script_of(shell, [*before, cell])
    with _written(text) as path:
        what = target.Target(kind=target.TargetKind.SCRIPT, name=path, arguments=())
        try:
            found = _search(shell, parsed, what)
        except UsageError as error:
            raise _about_the_cell(error, path) from None
    remember(found, "%%cputrain_tune")
    applied = None if parsed.values.get("--apply") == "no" else _applied(parsed)
    return Tuning(found=found, applied=applied, left_out=tuple(left_out))


def _search(shell: Any, parsed: Parsed, what: target.Target) -> Found:
    machine = read_machine(RootSource())
    with _watching(shell) as watching:
        return tune.search_with_options(parsed, what, machine, watching)


def _applied(parsed: Parsed) -> Setup:
    """What was found, applied to this process."""
    # what was given stayed in every trial, except how few bits were allowed
    given = {
        flag: value for flag, value in parsed.values.items() if flag in _FLAGS - {"--precision"}
    }
    return set_up(NOTHING_SAID.replace(values=given), {})


_FLAGS = {knob.flag for knob in KNOBS.values()}


@contextmanager
def _written(text: str) -> Iterator[str]:
    """A file of the script, in a folder that only this user may open; nothing is left of it."""
    from cputrain.tune.folders import path_of_trials

    with tempfile.TemporaryDirectory(prefix="cputrain-cell-") as folder:
        path = os.path.join(folder, "cell.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            yield path
        finally:
            shutil.rmtree(path_of_trials(path), ignore_errors=True)


def _about_the_cell(error: UsageError, path: str) -> UsageError:
    """What was said of the script, as it is about the cell."""
    if error.parameter != f"the script {path}":
        return error
    if "NameError" in error.found:
        return UsageError(
            "the cell",
            f"must hold all that it needs: {HOLDS}",
            found=error.found,
            do="Put the cells that it needs before it: %%cputrain_tune --cells 1-4",
        )
    return UsageError(
        "the cell",
        error.rule,
        found=error.found,
        do="--steps asks for fewer. Run the cell by itself to see more.",
    )


def _watching(shell: Any) -> AbstractContextManager[Watcher]:
    """A table that grows in a notebook; what fits the terminal elsewhere."""
    if getattr(shell, "kernel", None) is None:
        from cputrain.report.trials import watcher

        return watcher()
    from cputrain.notebook.showing import Showing

    return Showing()
