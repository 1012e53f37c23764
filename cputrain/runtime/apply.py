"""Apply the settings of a plan once torch is loaded, and report their effects at exit."""

from __future__ import annotations

import atexit
import os
import sys
from itertools import islice

from cputrain import variables
from cputrain.runtime import shutdown
from cputrain.runtime.notes import MANY_THREADS, ShortSteps, UntunedRun
from cputrain.runtime.state import NOW
from cputrain.settings.core.exclusion import is_excluded
from cputrain.settings.core.registry import APPLIED_IN_ORDER, SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any, Protocol

    from cputrain.runtime.plan_env import PlanEnv
    from cputrain.settings.core.setting import Applied, Setting

    class Learns(Applied, Protocol):
        """What varies settings during the run: see `cputrain.learn`."""

        def apply(self, name: str, value: object) -> Applied | None:
            """Apply a setting so that it can be varied; None if it is not going to be."""

        def listen(self) -> None:
            """Begin, once all settings are applied."""


def apply_plan(torch: ModuleType, plan_env: PlanEnv, *, reports: bool, is_planned: bool) -> None:
    """Apply every setting of the plan, and register the report for the end of the process."""
    NOW.launched = True
    NOW.thread_variables = plan_env.thread_variables
    NOW.is_planned = is_planned or bool(plan_env.rank)
    learner = _learner(torch, plan_env)
    for setting in APPLIED_IN_ORDER:
        if setting.name in plan_env.values and not is_excluded(setting, plan_env.values):
            start(setting, torch, plan_env.values[setting.name], learner)
    if learner is not None:
        NOW.applied["learn"] = learner
        learner.listen()
    NOW.values.update(plan_env.values)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        shutdown.write_errors()
        atexit.register(shutdown.wait_for_threads, os.getpid())
        if torch.distributed.is_available():
            shutdown.keep_process_groups(torch)
    if reports:
        num_threads = plan_env.values.get("threads", 0)
        is_chosen = "threads" in plan_env.settings or bool(plan_env.thread_variables)
        steps = (
            ShortSteps(torch, num_threads)
            if num_threads >= MANY_THREADS and not is_chosen
            else None
        )
        notes: list[ShortSteps | UntunedRun] = [steps] if steps is not None else []
        if not plan_env.settings and NOW.is_planned and not plan_env.rank:
            notes.append(UntunedRun())
        atexit.register(_report, os.getpid(), torch, notes)


def _learner(torch: ModuleType, plan_env: PlanEnv) -> Learns | None:
    """Return what varies settings during the run; None unless `learn` is on for this process."""
    if not plan_env.values.get("learn") or not NOW.is_planned or variables.TRIAL in os.environ:
        return None
    from cputrain.learn.learner import Learner

    return Learner.of_script(torch, plan_env)


def start(
    setting: Setting[Any], torch: ModuleType, value: object, learner: Learns | None = None
) -> None:
    """Apply one setting, and keep the result in the state for `describe` and `undo`.

    A learner applies what it is going to switch in a way of its own.
    """
    applied = learner.apply(setting.name, value) if learner is not None else None
    if applied is None:
        applied = setting.apply(torch, value)
    if applied is not None:
        NOW.applied[setting.name] = applied


def _in_order(applied: dict[str, Applied]) -> list[Applied]:
    """Return the applied settings in plan order: a notebook may have applied some again."""
    order = {name: place for place, name in enumerate(SETTINGS)}
    return [applied[name] for name in sorted(applied, key=lambda name: order.get(name, len(order)))]


def _report(pid: int, torch: ModuleType, notes: Sequence[ShortSteps | UntunedRun]) -> None:
    # forked children may run exit handlers; print(file=None) would be standard output
    if os.getpid() != pid or sys.stderr is None:
        return
    texts = [text for setting in _in_order(NOW.applied) if (text := setting.describe())]
    said = filter(None, (note.describe() for note in notes))
    lines = [f"cputrain: {text}" for text in islice(said, 1)]
    if "TORCHELASTIC_RUN_ID" in os.environ and (text := shutdown.note_on_ranks(torch)):
        lines.append(f"cputrain: {text}")
    lines.append(f"cputrain: {', '.join(texts) or 'nothing was changed'}")
    try:
        print("\n".join(lines), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # standard error is closed
        return
