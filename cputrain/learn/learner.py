"""Try settings in the steps of a running script; keep those that are faster.

The state between two whole steps is one of three: settings stay as they are; a candidate has its
turns; or a candidate has won its turns, and the next call of each model is compared with a twin.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import threading
import time
import weakref
from statistics import median

from cputrain.learn.allowance import Allowance
from cputrain.learn.knowledge import Knowledge, Tried
from cputrain.learn.switches import switch_of
from cputrain.learn.turns import Turns
from cputrain.learn.whole_steps import WholeSteps
from cputrain.runtime.counters import Counters, other_cpu_seconds
from cputrain.runtime.hook import report_internal
from cputrain.runtime.memory_pressure import MemoryPressure
from cputrain.runtime.patching import never_compile
from cputrain.runtime.root_forward import is_watched, root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from cputrain.learn.switches import StepSwitch
    from cputrain.runtime.plan_env import PlanEnv
    from cputrain.settings.core.setting import Applied

NUM_FIRST = 10
"""Whole steps before the first candidate: of their times the usual one is taken."""

NUM_TWINS = 2.5
"""Steps whose time a comparison with a twin takes."""

LOOK_EVERY = 10
"""Whole steps between two looks for a candidate that the allowance permits."""

MAX_OTHERS = 0.1
"""Share of the CPUs that other programs may use without making a result rough."""

RESOLUTION_S = 0.05
"""CPU seconds of others that the system's counters cannot tell from none."""

MAX_MODELS = 4
"""Models that are compared with twins at most, in one step."""


class Variation:
    """A candidate: a value of a setting, and what is measured of it.

    Args:
        setting: Name of the setting.
        switch: The setting, which has its previous value.
        value: The value to try.
        usual_s: Time of a step with the previous value.
        counters: Counters of the CPUs' use.
    """

    def __init__(
        self, setting: str, switch: StepSwitch, value: str, *, usual_s: float, counters: Counters
    ) -> None:
        self.setting = setting
        self.switch = switch
        self.value = value
        self.previous = switch.value
        self.turns = Turns(usual_s, switch.num_settling)
        self.has_won = False
        """Whether it was faster in its turns, and is still to be compared with a twin."""
        self._counters = counters
        self._counted = counters.now()
        self._began_at = time.perf_counter()

    def result(self, gain: float, reason: str) -> Tried:
        """Return what came of it, and whether other programs disturbed it."""
        counted = self._counters.now()
        spent = {name: counted[name] - self._counted[name] for name in self._counted}
        seconds = time.perf_counter() - self._began_at
        others = max(0.0, other_cpu_seconds(spent) - RESOLUTION_S) / seconds
        return Tried(
            setting=self.setting, value=self.value, previous=self.previous, gain=gain,
            reason=reason, is_rough=others > MAX_OTHERS * max(1, len(self._counters.cpus)),
        )  # fmt: skip


class Learner:
    """Learning in one process.

    Args:
        torch: The module.
        fixed: Names of the settings that the user has set: they are not varied.
        knowledge: What earlier runs have learnt.
    """

    def __init__(self, torch: ModuleType, *, fixed: frozenset[str], knowledge: Knowledge) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils._pytree import tree_leaves

        self._tree_leaves = tree_leaves
        self._torch = torch
        self._fixed = fixed
        self._knowledge = knowledge
        self._switches: dict[str, StepSwitch] = {}
        self._steps = WholeSteps()
        self._thread: int | None = None
        self._last = 0.0
        self._first_times: list[float] = []
        self._usual_s = 0.0
        """Median time of a step with what has stayed so far."""
        self._next_look = 0
        """Number of whole steps from which the next candidate may begin."""
        self._allowance: Allowance | None = None
        self._candidate: Variation | None = None
        self._counters = Counters()
        self._compared: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that were compared with a twin for the candidate."""
        self._differs = ""
        """How one of them differs from its twin; empty if none does."""
        self._is_over = False
        self._pid = os.getpid()
        self._root_forward = root_forward_of(torch)
        never_compile(Learner._after_step)
        self._hook = register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._save)

    @classmethod
    def of_script(cls, torch: ModuleType, plan_env: PlanEnv) -> Learner:
        """Return the learner of this process, for the script that it runs."""
        from cputrain.machine import RootSource, read_machine

        machine = read_machine(RootSource(), detail=False)
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        script = main if os.access(main, os.R_OK) and os.path.isfile(main) else ""
        knowledge = Knowledge(script, machine.fingerprint(), machine.budget.cpus)
        fixed = {
            name
            for name, value in plan_env.settings.items()
            if knowledge.settings.get(name) != value
        }
        if plan_env.thread_variables:
            fixed.add("threads")
        return cls(torch, fixed=frozenset(fixed), knowledge=knowledge)

    # -- settings

    def apply(self, name: str, value: Any) -> Applied | None:
        """Apply a setting so that it can be switched; None if it is fixed, or cannot be."""
        if name in self._fixed:
            return None
        switch = switch_of(name, self._torch, value)
        if switch is None:
            return None
        self._switches[name] = switch
        return switch.applied

    def listen(self) -> None:
        """Listen to calls of models, within the settings that change them.

        What is known is used from now on: launch does not know the file of a module (-m).
        """
        for name, value in self._knowledge.settings.items():
            switch = self._switches.get(name)
            if switch is not None and switch.value != value:
                switch.use(value)
        if self._switches:
            self._root_forward.add(self._intercept)

    # -- steps

    def _after_step(self, optimizer: Any, *_: object) -> None:
        if self._is_over or not self._switches or self._torch.compiler.is_compiling():
            return
        try:
            self._count_step(optimizer)
        except Exception as error:  # the script's training must not stop for any fault of ours
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Leave all settings as they are, and report a fault."""
        self._is_over = True
        report_internal(error)

    def _count_step(self, optimizer: Any) -> None:
        """Count an optimizer's step, and decide on the next whole step."""
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread or not self._steps.ends_with(optimizer):
            if thread == self._thread and self._candidate is not None and not self._steps.is_known:
                self._reject(self._candidate, "the script's training changed")
            return
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        if self._allowance is None:
            self._observe(seconds)
        else:
            self._go_on(self._allowance, seconds)

    def _observe(self, seconds: float) -> None:
        """Time a step before the first candidate."""
        self._first_times.append(seconds)
        if len(self._first_times) > NUM_FIRST:  # the first is the time since the process began
            self._usual_s = median(self._first_times[1:])
            self._allowance = Allowance(self._usual_s)
            self._allowance.num_steps = len(self._first_times)
            self._knowledge.forget_unless_batches_match()

    def _go_on(self, allowance: Allowance, seconds: float) -> None:
        """Count a step, and decide on the next."""
        candidate = self._candidate
        is_in_use = candidate is not None and candidate.turns.is_candidate
        allowance.add_step(0.0 if is_in_use else (self._knowledge.gain - 1) * self._usual_s)
        if candidate is not None:
            if candidate.has_won:
                self._end_comparison(candidate, allowance, seconds)
            else:
                self._take_turn(candidate, allowance, seconds)
        if self._candidate is None and allowance.num_steps >= self._next_look:
            self._next_look = allowance.num_steps + LOOK_EVERY
            self._begin_next(allowance)

    def _take_turn(self, candidate: Variation, allowance: Allowance, seconds: float) -> None:
        """Count a step of a candidate's turns, and switch for the next."""
        switch, turns = candidate.switch, candidate.turns
        was_candidate = turns.is_candidate
        if switch.value != (candidate.value if was_candidate else candidate.previous):
            self._reject(candidate, "the script sets it")
            return
        if was_candidate:
            allowance.add_excess(seconds, turns.step_s, is_timed=turns.is_settled)
        verdict = turns.add(seconds)
        self._usual_s = turns.step_s
        if verdict is None:
            if turns.is_candidate != was_candidate:
                switch.use(candidate.value if turns.is_candidate else candidate.previous)
        elif not verdict:
            self._reject(candidate, f"{turns.latest:.2f} times as fast")
        elif switch.needs_twin:
            candidate.has_won = True
            self._compared.clear()
            self._differs = ""
        else:
            self._keep(candidate)

    def _end_comparison(self, candidate: Variation, allowance: Allowance, seconds: float) -> None:
        """Decide on a candidate after a step in which models were compared with twins."""
        if not len(self._compared):
            return  # not yet: no model was called, or it does not pay yet
        allowance.add_excess(seconds, self._usual_s, is_timed=False)
        if self._differs:
            self._reject(candidate, self._differs)
        else:
            self._keep(candidate)

    # -- candidates

    def _begin_next(self, allowance: Allowance) -> None:
        """Begin the turns of the next candidate that the allowance permits."""
        are_all_tried = True
        switches = {} if self._knowledge.is_complete else self._switches
        for name, switch in switches.items():
            if allowance.left_s < switch.num_risked * self._usual_s + switch.risked_s:
                are_all_tried = False
                continue  # even to know its candidates may take time
            value = self._next_value(name, switch)
            if value is not None:
                self._candidate = Variation(
                    name, switch, value, usual_s=self._usual_s, counters=self._counters
                )
                return
        if are_all_tried:
            self._end()
        elif allowance.is_spent:
            self._is_over = True  # the next run goes on

    def _next_value(self, name: str, switch: StepSwitch) -> str | None:
        """Return the next value of a setting to try; None if there is none left."""
        for value in switch.candidates():
            if not self._knowledge.is_tried(name, value):
                return value
            if switch.is_monotonic:
                return None  # it was slower, as those after it would be
        return None

    def _reject(self, candidate: Variation, reason: str) -> None:
        switch = candidate.switch
        if switch.value == candidate.value:
            switch.use(candidate.previous)
        switch.discard()
        self._knowledge.add(candidate.result(0.0, reason))
        self._candidate = None

    def _keep(self, candidate: Variation) -> None:
        gain = candidate.turns.gain
        candidate.switch.use(candidate.value)
        self._knowledge.add(candidate.result(gain, ""))
        self._usual_s /= gain
        self._candidate = None
        self._save()

    def _end(self) -> None:
        self._is_over = True
        self._knowledge.is_complete = True
        self._save()

    # -- calls of models

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self._is_over:
            try:
                self._look_at(model, args, kwargs)
            except Exception as error:  # the script's training must not stop for any fault of ours
                self._give_up(error)
        return call(model, *args, **kwargs)

    def _look_at(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare a call with a twin's, or note the shape of its batch."""
        candidate = self._candidate
        if candidate is not None and candidate.has_won:
            if self._can_compare(candidate, model):
                self._compare(candidate, model, args, kwargs)
        elif self._allowance is None and model.training:
            self._knowledge.add_batch(self._tree_leaves((args, kwargs)))

    def _can_compare(self, candidate: Variation, model: Any) -> bool:
        allowance = self._allowance
        assert allowance is not None
        return (
            threading.get_ident() == self._thread
            and model not in self._compared
            and len(self._compared) < MAX_MODELS
            and (1 - 1 / candidate.turns.gain) * allowance.num_steps
            >= NUM_TWINS  # it pays in as many again
            and self._torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in model.parameters())
            and not is_watched(self._torch)
        )

    def _compare(
        self, candidate: Variation, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        from cputrain.learn.twin import difference_from_twin

        self._compared.add(model)
        if not self._fits_twice():
            self._differs = "there is too little memory for a copy of the model"
            return
        with self._root_forward.original_call():
            self._differs = self._differs or difference_from_twin(
                model,
                type(model).__call__,
                args,
                kwargs,
                lambda copied: candidate.switch.prepare(copied, candidate.value),
            )

    def _fits_twice(self) -> bool:
        """Return whether there is free memory for as much again as this process has."""
        available_bytes = MemoryPressure().available_bytes()
        try:
            with open("/proc/self/statm", "rb") as file:
                resident_bytes = int(file.read().split()[1]) * mmap.PAGESIZE
        except OSError:  # not Linux
            return True
        return available_bytes is None or available_bytes > resident_bytes

    # -- the end

    def _save(self) -> None:
        if os.getpid() == self._pid:
            self._knowledge.save()

    def describe(self) -> str:
        """Return what was learnt, for the last line."""
        return self._knowledge.describe()

    def undo(self) -> None:
        """Stop learning; what was kept stays."""
        if self._candidate is not None:
            self._reject(self._candidate, "learning was stopped")
        self._is_over = True
        self._hook.remove()
