"""Entry points that sitecustomize calls before and after it loads torch and a few other modules.

Every exception of this package is caught here, in the user's process, and reported in one line; the
script then runs as it would under python.
"""

from __future__ import annotations

import os
import sys

from cputrain import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_faults: list[BaseException] = []
"""Exceptions so far. Only the first is reported: the rest are mostly its consequences."""


def before(name: str) -> None:
    """Prepare for the module `name`, which is about to be loaded."""
    if name == "torch":
        _guarded(_prepare)


def after(name: str, module: ModuleType, reports: bool, is_planned: bool) -> None:
    """Apply what concerns the module `name`, which has just been loaded.

    Args:
        reports: Whether to print the report line when the process ends.
        is_planned: Whether the plan was made for this process, rather than for an ancestor.
    """
    if name == "torch":
        _guarded(lambda: _apply(module, reports=reports, is_planned=is_planned))
    elif name == "torch._dynamo":
        _guarded(_prepare_to_compile)
    else:
        _guarded(lambda: _apply_to_module(name, module))


def _guarded(step: Callable[[], None]) -> None:
    from cputrain.errors import CputrainError

    try:
        step()
    except CputrainError as error:
        _report(error, f"{error} The script runs as under python.")
    except Exception as error:  # the user's script must not stop for any fault of ours
        report_internal(error)


def report_internal(error: BaseException) -> None:
    """Report a fault of this package, in one line on standard error."""
    _report(
        error,
        f"[internal] {type(error).__name__}: {error}. The script runs as under python; please "
        "report this with the output of: cputrain info --capture machine.json",
    )


def _report(error: BaseException, message: str) -> None:
    _faults.append(error)
    if len(_faults) > 1 or sys.stderr is None:
        return
    try:
        print("cputrain: " + " ".join(message.split()), file=sys.stderr)
    except (OSError, ValueError):  # standard error is closed
        return


def _prepare() -> None:
    from cputrain.runtime.library_variables import set_variables
    from cputrain.runtime.plan_env import read_plan_env
    from cputrain.runtime.share import take_share

    take_share(os.environ)
    set_variables(read_plan_env().environment)


def _apply(torch: ModuleType, *, reports: bool, is_planned: bool) -> None:
    from cputrain.runtime.apply import apply_plan
    from cputrain.runtime.deferred_dynamo import defer_dynamo
    from cputrain.runtime.library_variables import remove_variables
    from cputrain.runtime.plan_env import read_plan_env

    remove_variables()
    defer_dynamo(torch)
    apply_plan(torch, read_plan_env(), reports=reports, is_planned=is_planned)
    if variables.PROGRESS in os.environ:
        from cputrain.runtime.common_data import open_common_data
        from cputrain.runtime.job_progress import count_steps

        count_steps()
        open_common_data()
    if variables.TRIAL in os.environ:
        from cputrain.runtime.state import NOW
        from cputrain.runtime.trial import watch

        NOW.on_trial = True
        watch(torch)


def _prepare_to_compile() -> None:
    from cputrain.runtime.deferred_dynamo import undefer_dynamo
    from cputrain.runtime.patching import register_skipped_code

    undefer_dynamo()
    register_skipped_code()


def _apply_to_module(name: str, module: ModuleType) -> None:
    """Apply the settings that concern a module other than torch."""
    from cputrain.runtime.plan_env import read_plan_env
    from cputrain.settings.core.registry import SETTINGS

    for setting_name, value in read_plan_env().values.items():
        setting = SETTINGS[setting_name]
        if name in setting.modules(value):
            setting.after_import(module, value)
