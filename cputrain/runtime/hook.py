"""Called when the modules that sitecustomize waits for are loaded.

This is the outermost edge of what we do in somebody else's process: a fault of ours ends here with
one line, and the script goes on as python would have run it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_faults: list[BaseException] = []
"""What went wrong so far. The first is told; those that follow mostly follow from it."""


def before(name: str) -> None:
    """Called before `name` is loaded."""
    if name == "torch":
        _guarded(_prepare)


def after(name: str, module: ModuleType, reports: bool, is_planned: bool) -> None:
    """Called once `name` is loaded.

    Args:
        reports: Whether a line at the end of the process is wanted.
        is_planned: Whether the plan was made for this process, and not for one that started it.
    """
    if name == "torch":
        _guarded(lambda: _apply(module, reports=reports, is_planned=is_planned))
    elif name == "multiprocessing":
        _guarded(lambda: _set_start_method(module))
    elif name == "torch._dynamo":
        _guarded(_have_ours_passed)
    elif name == "safetensors.torch":
        _guarded(lambda: _let_save(module))


def _guarded(step: Callable[[], None]) -> None:
    from cputrain.errors import CputrainError

    try:
        step()
    except CputrainError as error:
        _tell(error, f"{error} The script runs as under python.")
    except Exception as error:  # the edge: whatever it is, the user's script must not stop for it
        _tell(
            error,
            f"[internal] {type(error).__name__}: {error}. The script runs as under python; please "
            "report this with the output of: cputrain info --capture machine.json",
        )


def _tell(error: BaseException, message: str) -> None:
    _faults.append(error)
    if len(_faults) > 1 or sys.stderr is None:
        return
    try:
        print("cputrain: " + " ".join(message.split()), file=sys.stderr)
    except (OSError, ValueError):  # standard error is closed: nobody is listening
        return


def _prepare() -> None:
    from cputrain.runtime.library_variables import set_variables
    from cputrain.runtime.plan_env import read_plan_env
    from cputrain.runtime.share import take_share

    take_share(os.environ)
    set_variables(read_plan_env().environment)


def _apply(torch: ModuleType, *, reports: bool, is_planned: bool) -> None:
    from cputrain.runtime.apply import apply_plan
    from cputrain.runtime.library_variables import remove_variables
    from cputrain.runtime.plan_env import read_plan_env

    remove_variables()
    apply_plan(torch, read_plan_env(), reports=reports, is_planned=is_planned)
    if "CPUTRAIN_TRIAL" in os.environ:
        from cputrain.runtime.state import NOW
        from cputrain.runtime.trial import watch

        NOW.on_trial = True
        watch(torch)


def _have_ours_passed() -> None:
    from cputrain.runtime.patching import have_them_passed

    have_them_passed()


def _let_save(safetensors: ModuleType) -> None:
    from cputrain.runtime.memory_order import let_safetensors_save

    let_safetensors_save(safetensors)


def _set_start_method(multiprocessing: ModuleType) -> None:
    from cputrain.runtime.plan_env import read_plan_env

    chosen = (read_plan_env().values.get("start_method") or {}).get("script")
    if chosen is not None:
        # the default, not the choice: a script that calls set_start_method still may
        contexts = multiprocessing.context
        contexts._default_context._default_context = contexts._concrete_contexts[chosen]
