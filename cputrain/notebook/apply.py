"""Apply a plan in a running process, and report for each decision whether it was applied.

Settings that patch torch are applied together, in order; each of the others alone, as far as a
process that has begun can still have it.
"""

from __future__ import annotations

from cputrain.notebook.outcome import Effect, SetupStep
from cputrain.plan import Origin
from cputrain.runtime.apply import start
from cputrain.runtime.openmp import end_threads
from cputrain.runtime.state import NOW
from cputrain.settings.core.registry import APPLIED_IN_ORDER, SETTINGS
from cputrain.settings.core.setting import RefusedError, TooLateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.plan import Decision, Plan
    from cputrain.settings.core.setting import Setting

ALONE = tuple(setting for setting in SETTINGS.values() if not setting.patches_torch)
TOGETHER = tuple(setting for setting in APPLIED_IN_ORDER if setting.patches_torch)

OTHERWISE = "cputrain launch did otherwise when this process began"
NOWHERE = "this system, or this torch, has no such setting"
KEPT = "threads of OpenMP that run already keep what they have"

_MISSING = object()


def apply_settings(torch: ModuleType, plan: Plan) -> tuple[SetupStep, ...]:
    """Apply every decision of the plan, and return the effect of each."""
    steps = {
        setting.name: _apply_alone(setting, torch, plan.decision(setting.name)) for setting in ALONE
    }
    steps.update(_apply_together(torch, plan))
    changed = [
        name
        for name, setting in SETTINGS.items()
        if setting.is_per_thread and steps[name].effect is Effect.APPLIED
    ]
    if changed and not end_threads():
        for name in changed:
            steps[name] = _late(plan.decision(name), Effect.PARTLY, KEPT)
    for step in steps.values():
        if step.effect is not Effect.NOT_APPLIED:
            NOW.values[step.policy] = plan.value(step.policy)
    return tuple(steps[decision.policy] for decision in plan.decisions)


def _is_same(decision: Decision[Any]) -> bool:
    """Return whether the same value was applied before."""
    return bool(NOW.values.get(decision.policy, _MISSING) == decision.value)


def _apply_alone(setting: Setting[Any], torch: ModuleType, decision: Decision[Any]) -> SetupStep:
    """Undo a previous value of the setting, and apply the new one."""
    before = NOW.applied.get(setting.name)
    is_kept = (before is not None or NOW.launched) and _is_same(decision)
    if is_kept and not (setting.may_drift and not setting.is_in_effect(torch, decision)):
        return _step(decision, Effect.ALREADY if setting.has_effect(decision) else Effect.NOTHING)
    if before is not None:
        try:
            before.undo()
        except TooLateError as error:
            return _late(decision, Effect.NOT_APPLIED, str(error))
        del NOW.applied[setting.name]
    if not setting.has_effect(decision):
        is_launched_otherwise = NOW.launched and before is None and not _is_same(decision)
        if is_launched_otherwise and decision.origin is Origin.USER:
            return _late(decision, Effect.NOT_APPLIED, OTHERWISE)
        return _step(decision, Effect.NOTHING if before is None else Effect.APPLIED)
    is_in_effect = setting.is_in_effect(torch, decision)
    try:
        applied = (setting.observe if is_in_effect else setting.apply_now)(torch, decision)
    except TooLateError as error:
        return _late(decision, Effect.NOT_APPLIED, str(error))
    except RefusedError as error:
        return _step(decision, Effect.NOT_APPLIED, str(error))
    if applied is not None:
        NOW.applied[setting.name] = applied
    return _step(decision, Effect.ALREADY if is_in_effect and before is None else Effect.APPLIED)


def _apply_together(torch: ModuleType, plan: Plan) -> dict[str, SetupStep]:
    """Apply all of the settings again if one has changed: some wrap what others patched."""
    decisions = {setting.name: plan.decision(setting.name) for setting in TOGETHER}
    before = {name for name in decisions if name in NOW.applied}
    same = {
        name
        for name, decision in decisions.items()
        if (_is_same(decision) and name in before)
        or not (SETTINGS[name].has_effect(decision) or name in before)
    }
    if same != decisions.keys():
        for name in [name for name in reversed(NOW.applied) if name in decisions]:
            NOW.applied.pop(name).undo()
        for setting in TOGETHER:
            start(setting, torch, decisions[setting.name].value)
    return {
        name: _step_of(SETTINGS[name], decision, is_same=name in same, was_applied=name in before)
        for name, decision in decisions.items()
    }


def _step_of(
    setting: Setting[Any], decision: Decision[Any], *, is_same: bool, was_applied: bool
) -> SetupStep:
    """Return the effect of a decision that was applied together with others."""
    if not setting.has_effect(decision):
        return _step(decision, Effect.APPLIED if was_applied and not is_same else Effect.NOTHING)
    if setting.name not in NOW.applied:
        return _step(decision, Effect.NOT_APPLIED, NOWHERE)
    missing_part = setting.missing_part(decision)
    if missing_part:
        return _late(decision, Effect.PARTLY, missing_part)
    return _step(decision, Effect.ALREADY if is_same else Effect.APPLIED)


def _late(decision: Decision[Any], effect: Effect, why: str) -> SetupStep:
    return _step(decision, effect, why).replace(late=True)


def _step(decision: Decision[Any], effect: Effect, why: str = "") -> SetupStep:
    return SetupStep(policy=decision.policy, says=decision.says, effect=effect, why=why)
