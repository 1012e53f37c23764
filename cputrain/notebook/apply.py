"""Apply a plan in a running process, and report for each decision whether it was applied.

The modules in PARTS apply what a launch sets before the interpreter starts, as far as this is still
possible. The transforms of `cputrain/runtime` apply the rest, as in a launch.
"""

from __future__ import annotations

from cputrain.notebook import allocator, interop, memory_policy, placement, start_method, threads
from cputrain.notebook import initial_env as began
from cputrain.notebook.outcome import Effect, Step
from cputrain.notebook.too_late import RefusedError, TooLateError
from cputrain.plan import Change, Origin
from cputrain.record import plain
from cputrain.runtime.apply import TRANSFORMS, start
from cputrain.runtime.state import NOW
from cputrain.runtime.threads import Threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Protocol

    from cputrain.plan import Decision, Plan
    from cputrain.runtime.apply import Applied

    class Part(Protocol):
        """A module that applies in a running process what a launch sets before its start."""

        POLICY: str
        """The policy whose decision the module applies."""

        def is_so(self, torch: ModuleType, decision: Decision) -> bool:
            """Return whether the decision is in effect already."""

        def apply(self, torch: ModuleType, decision: Decision) -> Applied | None:
            """Apply the decision.

            Raises:
                TooLateError: It can only be applied before the process starts.
                RefusedError: The system does not allow it.
            """


PARTS: tuple[Part, ...] = (
    threads,
    interop,
    placement,
    memory_policy,
    allocator,
    start_method,
)

INHERITED = ("flush_denormals", "memory_policy")
"""Decisions on the state of a thread, which its child threads inherit."""

OTHERWISE = "cputrain launch did otherwise when this process began"
NOWHERE = "this system, or this torch, has no such setting"
KEPT = "threads of OpenMP that run already keep what they have"
BESIDE = "beside loader workers only: libgomp reads GOMP_SPINCOUNT when it is loaded"


def apply_settings(torch: ModuleType, plan: Plan) -> tuple[Step, ...]:
    """Apply every decision of the plan, and return the effect of each."""
    steps = {part.POLICY: _apply_part(part, torch, plan.decision(part.POLICY)) for part in PARTS}
    steps.update(_apply_transforms(torch, plan))
    anew = [name for name in INHERITED if steps[name].effect is Effect.APPLIED]
    if anew and not threads.begin_anew():
        for name in anew:
            steps[name] = _late(plan.decision(name), Effect.PARTLY, KEPT)
    for step in steps.values():
        if step.effect is not Effect.NOT_APPLIED:
            NOW.values[step.policy] = plain(plan.value(step.policy))
    return tuple(steps[decision.policy] for decision in plan.decisions)


def _has_effect(decision: Decision) -> bool:
    """Return whether a decision changes anything."""
    if decision.policy == "start_method":
        return bool(decision.value["script"])
    if decision.policy == "loader_cores":
        return bool(decision.value["cpus"])
    return decision.change is not Change.NONE


def _is_in_effect(decision: Decision) -> bool:
    """Return whether the same value is in effect."""
    return bool(NOW.values.get(decision.policy, _MISSING) == plain(decision.value))


_MISSING = object()


def _apply_part(part: Part, torch: ModuleType, decision: Decision) -> Step:
    """Undo a previous value of the decision, and apply the new one."""
    before = NOW.applied.get(part.POLICY)
    kept = (before is not None or NOW.launched) and _is_in_effect(decision)
    if kept and (part is not threads or part.is_so(torch, decision)):
        return _step(decision, Effect.ALREADY if _has_effect(decision) else Effect.NOTHING)
    if before is not None:
        try:
            before.undo()
        except RuntimeError:
            return _late(decision, Effect.NOT_APPLIED, interop.ONCE)
        del NOW.applied[part.POLICY]
    if not _has_effect(decision):
        other = NOW.launched and before is None and not _is_in_effect(decision)
        if other and decision.origin is Origin.USER:
            return _late(decision, Effect.NOT_APPLIED, OTHERWISE)
        return _step(decision, Effect.NOTHING if before is None else Effect.APPLIED)
    if part.is_so(torch, decision):
        if part is threads:  # what holds is told at the end, whoever has set it
            NOW.applied[part.POLICY] = Threads(torch, decision.value)
        return _step(decision, Effect.ALREADY if before is None else Effect.APPLIED)
    try:
        found = part.apply(torch, decision)
    except TooLateError as error:
        return _late(decision, Effect.NOT_APPLIED, str(error))
    except RefusedError as error:
        return _step(decision, Effect.NOT_APPLIED, str(error))
    if found is not None:
        NOW.applied[part.POLICY] = found
    return _step(decision, Effect.APPLIED)


def _apply_transforms(torch: ModuleType, plan: Plan) -> dict[str, Step]:
    """Apply all transforms again if one has changed: some wrap functions that others patched."""
    parts = {part.POLICY for part in PARTS}
    names = [transform.POLICY for transform in TRANSFORMS if transform.POLICY not in parts]
    decisions = {name: plan.decision(name) for name in names}
    before = {name for name in names if name in NOW.applied}
    same = {
        name
        for name, decision in decisions.items()
        if (_is_in_effect(decision) and name in before)
        or not (_has_effect(decision) or name in before)
    }
    if same != decisions.keys():
        _reapply(torch, decisions)
    steps = {}
    for name, decision in decisions.items():
        if _has_effect(decision):
            effect = Effect.ALREADY if name in same else Effect.APPLIED
        else:
            changed = name in before and name not in same
            effect = Effect.APPLIED if changed else Effect.NOTHING
        steps[name] = _step(decision, effect)
        if _has_effect(decision) and name not in NOW.applied:
            steps[name] = _step(decision, Effect.NOT_APPLIED, NOWHERE)
    spins = decisions["short_waits"].environment
    if spins and not began.has(spins) and steps["short_waits"].effect is not Effect.NOT_APPLIED:
        steps["short_waits"] = _late(decisions["short_waits"], Effect.PARTLY, BESIDE)
    return steps


def _reapply(torch: ModuleType, decisions: dict[str, Decision]) -> None:
    """Undo every transform, the last first, and apply all of them."""
    for name in [name for name in reversed(NOW.applied) if name in decisions]:
        NOW.applied.pop(name).undo()
    for transform in TRANSFORMS:
        if transform.POLICY in decisions:
            start(transform, torch, plain(decisions[transform.POLICY].value))


def _late(decision: Decision, effect: Effect, why: str) -> Step:
    return _step(decision, effect, why).replace(late=True)


def _step(decision: Decision, effect: Effect, why: str = "") -> Step:
    return Step(policy=decision.policy, says=decision.says, effect=effect, why=why)
