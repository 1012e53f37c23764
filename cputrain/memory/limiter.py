"""Keep training below a memory limit: activations of some modules are recomputed in backward."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves

from cputrain.errors import MemoryLimitError
from cputrain.memory.forward import FIRST_TEMPORARIES, Forward
from cputrain.memory.module_call import batch_size
from cputrain.memory.process_memory import anonymous_bytes, peak_anonymous_bytes, reset_peak
from cputrain.memory.saved_tensors import SavedBytes
from cputrain.memory.schedule import calls_to_recompute
from cputrain.memory.tree import TreeMemorySampler
from cputrain.runtime.effects import effects_listed
from cputrain.runtime.glibc import Malloc
from cputrain.runtime.kept_memory import TOUCHED_BYTES_PER_S
from cputrain.runtime.linear_cross_entropy import MIN_ELEMENTS as MIN_LINEAR_ELEMENTS
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.runtime.optimizer_states import EightBitStates
from cputrain.runtime.state import NOW

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.memory.forward import Planned

MIB = 1 << 20

MARGIN = 0.05
"""Part of the limit that is left free."""

FIRST_RESERVE_BYTES = 32 << 20
"""What a first step is thought to need beside gradients and what autograd saves."""

MIN_HEADROOM_BYTES = 32 << 20
"""How far below the limit free memory is given back, at least: operators need some meanwhile."""

NUM_FIRST_STEPS = 2
"""Steps after which it is known what operators need."""

MIN_GROWTH_BYTES, SMALL_GROWTH_BYTES = 16 << 20, 4 << 20
"""How much more memory there must be before free memory is given back again: below the limit, and
above it."""

FADING = 0.98
"""What remains, after another step, of the memory by which a step was above the limit."""

MAX_SHAPES = 64
"""Shapes of inputs whose forwards are remembered, for each model."""

SLACK = 0.1
"""Part of a forward's saved bytes that must be free before fewer calls are recomputed."""

_NO_EFFECTS: AbstractContextManager[list[str]] = nullcontext([])


class _Current(threading.local):
    """The forward that this thread runs; None outside of models and in a recomputation."""

    forward: Forward | None = None
    call: tuple[Any, tuple[Any, ...], dict[str, Any]] = (None, (), {})
    """The model, and what it was called with."""


class RecomputationPlan:
    """Calls of one forward that are recomputed."""

    def __init__(self, forward: Forward) -> None:
        self._planned = forward.planned(())
        self._saved_bytes = self.peak_bytes = self._planned.trace.saved_bytes
        """The most that autograd will save at once."""

    def fit(self, budget_bytes: int, spare_bytes: int) -> Planned:
        """Choose again if the choice does not fit, or fewer calls would do.

        Args:
            budget_bytes: What autograd may save at once.
            spare_bytes: What had better stay free, where recomputing takes less time than touching
                so much memory anew.
        """
        trace, recomputed = self._planned.trace, self._planned.dropped
        wanted_bytes = budget_bytes - spare_bytes
        is_tight = wanted_bytes < self.peak_bytes + self._saved_bytes * SLACK
        if self.peak_bytes > wanted_bytes or (recomputed and not is_tight):
            recomputed = calls_to_recompute(trace, budget_bytes)
            if spare_bytes:
                more = calls_to_recompute(trace, wanted_bytes)
                seconds = trace.seconds(more) - trace.seconds(recomputed)
                if seconds < spare_bytes / TOUCHED_BYTES_PER_S:
                    recomputed = more
            self._planned = self._planned._replace(dropped=recomputed)
            self.peak_bytes = trace.peak_bytes(recomputed)
        return self._planned


class MemoryLimiter:
    """Budget of what autograd saves, from the memory of each step.

    Free memory of the heap is given back where the process is at its limit, so that the budget is
    that of memory in use.

    Args:
        limit_bytes: Largest resident memory of this process and its children, without pages of
            files.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self._whole_limit_bytes = int(limit_bytes * (1 - MARGIN))
        self._sampler = TreeMemorySampler()
        self._malloc = Malloc()
        self._count = SavedBytes(self._look)
        self._current = _Current()
        self._hooks = ModuleHooks(torch)
        self._plans: WeakKeyDictionary[Any, dict[Any, RecomputationPlan]] = WeakKeyDictionary()
        """Plans of each model, by the shapes that it is called with."""
        self._last_seen_bytes = 0
        """Memory where it was looked at the last time."""
        self._largest_seen_bytes = 0
        """The largest memory of the step where it was looked at."""
        self._growth_bytes = 0
        """By how much memory grew beyond what was seen before, at most."""
        self._after_trim = 0
        """Resident memory after free memory was given back the last time."""
        self._unallocated_bytes = 0
        """Resident memory that is not allocated, as it was when free memory was given back."""
        self._base_bytes: int | None = None
        """Allocated memory at the first forward of the step; None before it."""
        self._temporary_bytes = 0
        """What a step needs beside what is there at its begin and what autograd saves."""
        self._reserve_bytes = 0
        """The same of the step before, with what was missing in it."""
        self._trimmed_bytes = self._spare_bytes = 0
        """What was given back within the step, and what is not planned with, so that less is."""
        self._missing_bytes = 0
        """By how much steps were above the limit, lately."""
        self._num_steps = 0
        self._last_peak_bytes = 0
        """The largest memory in the last step."""
        self.peak_bytes = 0
        """The largest memory in any step."""
        self.recomputed: list[str] = []
        """Names of the modules that are recomputed in the last forward's backward."""

    def call_model(self, call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a model, and drop what autograd saves where it does not fit."""
        is_training = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in model.parameters()
        )
        if not is_training:
            return call(model, *args, **kwargs)
        if self._base_bytes is None:
            self._begin_step(model)
        plans = self._plans.setdefault(model, {})
        key = _key_of(model, args, kwargs)
        plan, budget_bytes = plans.get(key), self._budget_bytes()
        planned = (
            None if plan is None else plan.fit(budget_bytes - self._count.total, self._spare_bytes)
        )
        if plan is not None and plan.peak_bytes > budget_bytes - self._count.total:
            self._check_last_step(model, args, kwargs)
        watch = effects_listed() if planned is None else _NO_EFFECTS
        with watch as effects:
            hooked = self._hooks.holders(model)
            forward = Forward(model, self._count, planned, budget_bytes, effects, hooked)
            self._current.forward, self._current.call = forward, (model, args, kwargs)
            try:
                result = forward.run(call, model, *args, **kwargs)
            finally:
                self._current.forward, self._current.call = None, (None, (), {})
        self.recomputed = forward.names_of_dropped() or self.recomputed
        saved_bytes = self._count.total
        if planned is None:
            saved_bytes = max(saved_bytes, forward.peak_bytes())
        self._check(model, args, kwargs, saved_bytes + self._make_room_for_loss(result))
        if planned is None:
            if len(plans) >= MAX_SHAPES:
                plans.clear()
            plans[key] = RecomputationPlan(forward)
        elif not forward.is_as_planned:
            del plans[key]
        return result

    def call_module(self, call: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a module within a model; in place of Module._call_impl."""
        forward = self._current.forward
        if forward is None:
            return call(module, *args, **kwargs)
        return forward.call_module(call, module, *args, **kwargs)

    def _begin_step(self, model: Any) -> None:
        if not self._plans:  # a first forward
            self._give_back()
            self._reserve_bytes = FIRST_RESERVE_BYTES + _new_gradients(model)
        self._subtract_workers()
        reset_peak()
        self._count.peak = self._count.total
        self._base_bytes = self._allocated_bytes() - self._count.total
        self._temporary_bytes = self._after_trim = self._trimmed_bytes = 0
        self._largest_seen_bytes = self._last_seen_bytes = anonymous_bytes()

    def _subtract_workers(self) -> None:
        """Leave this process what its child processes, such as loader workers, do not take."""
        for sample in self._sampler.sample([os.getpid()]).values():
            self._limit_bytes = self._whole_limit_bytes - sample.current_bytes

    def _make_room_for_loss(self, output: Any) -> int:
        """Give back free memory if a loss would not fit: it is computed where nothing is looked at.

        Return what the output and its gradient take together, at least.
        """
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        loss_bytes = 2 * sum(
            tensor.nbytes
            for tensor in tensors
            if tensor.requires_grad and tensor.numel() < MIN_LINEAR_ELEMENTS
        )  # (the gradient of a larger one is computed in parts, and forgotten)
        self._temporary_bytes = max(self._temporary_bytes, loss_bytes)
        if anonymous_bytes() + loss_bytes > self._limit_bytes:
            self._give_back()
        return loss_bytes

    def _check_first_forward(self) -> None:
        """Raise MemoryLimitError if all that was given back is not enough for the first forward."""
        assert self._base_bytes is not None
        if self._after_trim * (1 - MARGIN) > self._limit_bytes:
            static_bytes = self._base_bytes + self._unallocated_bytes
            raise self._error(*self._current.call, self._after_trim - static_bytes)

    def _check_last_step(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise MemoryLimitError if the last of the first steps took more than the limit.

        It is called where no more can be recomputed: the next step would take as much. Later, when
        much has been trained, a limit that is missed is no reason to end.
        """
        assert self._base_bytes is not None
        limit_bytes = int(self._limit_bytes / (1 - MARGIN))
        if self._num_steps <= NUM_FIRST_STEPS and self._last_peak_bytes > limit_bytes:
            static_bytes = self._base_bytes + self._unallocated_bytes
            raise self._error(model, args, kwargs, self._last_peak_bytes - static_bytes)

    def _check(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], batch_bytes: int
    ) -> None:
        """Raise MemoryLimitError if backward would need more than there is.

        What is reserved for temporary tensors is a guess in the first step, and does not count.
        """
        assert self._base_bytes is not None
        static_bytes = self._base_bytes + self._unallocated_bytes + _new_gradients(model)
        if static_bytes + batch_bytes > self._limit_bytes:
            raise self._error(model, args, kwargs, batch_bytes)

    def _error(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], batch_bytes: int
    ) -> MemoryLimitError:
        """Return an error with the batch that would fit.

        Args:
            model: The model that is called.
            args: Its arguments.
            kwargs: Its named arguments.
            batch_bytes: What the batch takes, at least.
        """
        assert self._base_bytes is not None
        static_bytes = self._base_bytes + self._unallocated_bytes
        static_bytes += _new_gradients(model) + _new_states(model)
        batch = batch_size(args, kwargs)
        fitting = batch * (self._limit_bytes - static_bytes) // max(1, batch_bytes)
        return MemoryLimitError(
            "the memory of a step",
            f"must fit into the limit of {self._limit_bytes // MIB:,} MiB",
            found=f"{(static_bytes + batch_bytes) // MIB:,} MiB that it needs at least, of "
            f"which {static_bytes // MIB:,} do not depend on the batch",
            do=f"A batch of {fitting} instead of {batch} would fit."
            if fitting >= 1
            else "No batch fits: set a larger limit, or train a smaller model.",
        )

    def _allocated_bytes(self) -> int:
        allocated = self._malloc.in_use_bytes()
        return anonymous_bytes() if allocated is None else allocated

    def _look(self) -> None:
        """Measure what is allocated, and give back free memory if the process is at its limit."""
        if self._base_bytes is not None:
            temporary = self._allocated_bytes() - self._base_bytes - self._count.total
            self._temporary_bytes = max(self._temporary_bytes, temporary)
        headroom_bytes = max(MIN_HEADROOM_BYTES, self._growth_bytes)
        if self._num_steps <= NUM_FIRST_STEPS:
            headroom_bytes = max(headroom_bytes, FIRST_TEMPORARIES * self._count.largest)
        resident = anonymous_bytes()
        self._largest_seen_bytes = max(self._largest_seen_bytes, resident)
        self._growth_bytes = max(self._growth_bytes, resident - self._last_seen_bytes)
        self._last_seen_bytes = resident
        growth_bytes = SMALL_GROWTH_BYTES if resident > self._limit_bytes else MIN_GROWTH_BYTES
        if resident > max(self._limit_bytes - headroom_bytes, self._after_trim + growth_bytes):
            self._give_back()
            self._last_seen_bytes = self._after_trim
            self._trimmed_bytes += max(0, resident - self._after_trim)
            if self._num_steps == 0 and self._current.forward is not None:
                self._check_first_forward()

    def _give_back(self) -> None:
        """Return free memory of the heap to the kernel."""
        self._malloc.trim()
        resident = anonymous_bytes()
        self._unallocated_bytes = max(0, resident - self._allocated_bytes())
        self._after_trim = resident

    def _budget_bytes(self) -> int:
        """Return what all saved tensors may take."""
        assert self._base_bytes is not None
        needed_bytes = self._base_bytes + self._unallocated_bytes + self._reserve_bytes
        return self._limit_bytes - needed_bytes

    def before_step(self, optimizer: Any, *_: object) -> None:
        """Raise MemoryLimitError if the state that an optimizer is about to make does not fit."""
        self._look()
        if optimizer.state:
            return
        state_bytes = _state_bytes(optimizer, lambda parameter: parameter.grad is not None)
        if anonymous_bytes() + state_bytes > self._limit_bytes:
            self._give_back()
        needed_bytes = self._allocated_bytes() + self._unallocated_bytes + state_bytes
        if needed_bytes > self._limit_bytes:
            raise MemoryLimitError(
                "parameters, gradients and the state of the optimizer",
                f"must fit into the limit of {self._limit_bytes // MIB:,} MiB",
                found=f"{needed_bytes // MIB:,} MiB, of which {state_bytes // MIB:,} are the state "
                f"of {type(optimizer).__name__}",
                do="No batch fits: set a larger limit, or train a smaller model.",
            )

    def after_step(self, *_: object) -> None:
        """Measure what the step needed, after an optimizer's step."""
        if self._base_bytes is None:
            return
        peak_bytes = peak_anonymous_bytes()
        self._last_peak_bytes = peak_bytes
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        self._num_steps += 1
        if self._num_steps > NUM_FIRST_STEPS:
            self._growth_bytes = max(self._growth_bytes, peak_bytes - self._largest_seen_bytes)
        # what was needed once is needed again, now and then
        self._missing_bytes = int(FADING * self._missing_bytes)
        self._missing_bytes += max(0, peak_bytes - self._limit_bytes)
        self._reserve_bytes = self._temporary_bytes + self._missing_bytes
        self._spare_bytes = int(FADING * self._spare_bytes) + self._trimmed_bytes
        self._spare_bytes = min(self._spare_bytes, self._limit_bytes // 4)
        self._base_bytes = None


def _new_gradients(model: Any) -> int:
    """Return the bytes of the gradients that backward is going to make."""
    return sum(
        parameter.nbytes
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.grad is None
    )


def _new_states(model: Any) -> int:
    """Return the bytes of what optimizers are going to keep for the parameters of a model."""
    parameters = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return sum(
        _state_bytes(each, lambda parameter: id(parameter) in parameters)
        for each in gc.get_objects()
        if issubclass(type(each), torch.optim.Optimizer) and not each.state
    )


def _state_bytes(optimizer: Any, has_state: Callable[[Any], bool]) -> int:
    """Return the bytes of what an optimizer keeps for some of its parameters."""
    return sum(
        _bytes_for(optimizer, group, parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if has_state(parameter)
    )


def _bytes_for(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> int:
    """Return the bytes of what an optimizer keeps for a parameter."""
    states = NOW.applied.get("optimizer_states")
    if isinstance(states, EightBitStates):
        num_bytes = states.num_bytes(optimizer, group, parameter)
        if num_bytes is not None:
            return num_bytes
    return _num_states(optimizer, group) * int(parameter.nbytes)


def _num_states(optimizer: Any, group: dict[str, Any]) -> int:
    """Return how many tensors like each parameter an optimizer of torch keeps; 0 if unknown."""
    name = type(optimizer).__name__
    if name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax"):
        return 3 if group.get("amsgrad") else 2
    if name == "SGD":
        return int(bool(group.get("momentum")))
    return int(name in ("RMSprop", "Rprop"))


def _key_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = tuple(
        tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None
        for leaf in tree_leaves((args, kwargs))
    )
    return model.training, shapes
