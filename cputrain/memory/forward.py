"""Record a forward: what autograd saves in it, and which calls of modules can be dropped."""

from __future__ import annotations

import random
import time
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from cputrain.memory.module_call import ModuleCall, ModuleState, tensors_in
from cputrain.memory.saved_tensors import SavedTensor, storage_of
from cputrain.memory.schedule import MIN_GAIN, CallSpan, ForwardTrace, is_within
from cputrain.runtime.saved_tensor_hooks import mark_internal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sized
    from typing import Any

    from cputrain.memory.saved_tensors import SavedBytes


FIRST_TEMPORARIES = 3
"""What a first backward is thought to need beside saved tensors, in sizes of the largest."""

LARGE_LAYER = 0.25
"""Part of all saved bytes from which a layer is shown by its parts."""


class Planned(NamedTuple):
    """A forward that is to be like an earlier one."""

    trace: ForwardTrace
    """The earlier forward."""

    modules: tuple[weakref.ref[torch.nn.Module], ...]
    """Its modules, by the index of the call."""

    dropped: Collection[int]
    """Indices of the calls that are dropped."""

    def has(self, index: int, module: torch.nn.Module, start: int) -> bool:
        """Return whether a call is the earlier one of this index."""
        return (
            index < len(self.modules)
            and self.modules[index]() is module
            and ((span := self.trace.calls[index]) is None or span.start == start)
        )


class Forward:
    """A forward of a model while it runs.

    Args:
        model: The model.
        count: Counts the saved tensors that exist.
        planned: The forward that is expected, and the calls of it to drop; None drops what is
            needed to be within the budget.
        budget_bytes: What all saved tensors may take.
        effects: Effects of the script's code so far; a call in which one is added is not dropped.
        hooked: Modules with hooks of the script within them; their calls are not dropped.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        count: SavedBytes,
        planned: Planned | None,
        budget_bytes: int,
        effects: Sized,
        hooked: Collection[torch.nn.Module] = (),
    ) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._count, self._planned, self._budget_bytes = count, planned, budget_bytes
        self._effects, self._hooked = effects, hooked
        count.existing = self._existing = {
            storage.data_ptr()
            for tensors in (model.parameters(), model.buffers())
            for storage in map(storage_of, tensors)
            if storage is not None
        }
        self._holders: list[weakref.ref[SavedTensor]] = []
        self._storages: list[int] = []
        self._sizes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        """Numbers of storages."""
        self._storage_references: list[StorageWeakRef] = []
        self._spans: list[CallSpan | None] = []
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self.is_as_planned = True
        """Whether all calls so far are those that were planned."""
        self._waiting: dict[int, ModuleCall] = {}
        """Calls that have ended and may be dropped, by index; each would free memory."""
        self._dropped: dict[int, str] = {}
        """Names of the modules of calls that were dropped, by index."""

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the model, with its saved tensors in the hands of this object."""
        with saved_tensors_hooks(self._pack, SavedTensor.unpack):
            try:
                return function(*args, **kwargs)
            finally:
                self._waiting.clear()

    @mark_internal
    def _pack(self, tensor: torch.Tensor) -> Any:
        holder = SavedTensor(tensor, self._count)
        self._holders.append(weakref.ref(holder))
        self._storages.append(self._identify(storage_of(tensor)))
        return holder

    def _identify(self, storage: torch.UntypedStorage | None) -> int:
        """Return a number for a storage; 0 for those that are not counted, as of parameters."""
        if storage is None or storage.data_ptr() in self._existing:
            return 0
        key = storage._cdata
        if key not in self._numbers:
            # while there is a weak reference, no other storage gets this key
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._storage_references.append(reference)
            self._numbers[key] = number = len(self._storage_references)
            self._sizes[number] = storage.nbytes()
        return self._numbers[key]

    def call_module(
        self, function: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a module of the model, and drop what autograd saves in the call, if planned."""
        index, start = len(self._spans), len(self._holders)
        self._spans.append(None)
        self._modules.append(weakref.ref(module))
        if self._planned is not None and not self._planned.has(index, module, start):
            self.is_as_planned = False
        # (recomputing the model itself, whose name is empty, would save nothing)
        is_candidate = bool(self._names.get(module)) and module not in self._hooked
        if not is_candidate or not torch.is_grad_enabled():
            return function(module, *args, **kwargs)
        may_be_dropped = self._planned is None or (
            self.is_as_planned and index in self._planned.dropped
        )
        call = None
        if may_be_dropped:
            bound = partial(function, module)
            call = ModuleCall(
                self._names[module], bound, ModuleState(module), args, kwargs, self._count
            )
        inputs = {self._identify(storage_of(tensor)) for tensor in tensors_in(args, kwargs)}
        num_effects = len(self._effects)
        python_state = random.getstate() if may_be_dropped else None
        begin = time.perf_counter()
        result = function(module, *args, **kwargs)
        seconds = time.perf_counter() - begin
        end = len(self._holders)
        is_repeatable = (
            end > start
            and num_effects == len(self._effects)
            and (call is None or (call.is_unchanged() and random.getstate() == python_state))
        )
        if is_repeatable:
            self._spans[index] = CallSpan(
                start=start, end=end, seconds=seconds, inputs=tuple(inputs)
            )
            if call is not None:
                self._end_call(index, call)
        return result

    def _end_call(self, index: int, call: ModuleCall) -> None:
        if self._planned is not None:
            self._drop(index, call)
            return
        if self._freed_bytes(index, call) == 0:
            return
        self._waiting[index] = call
        budget_bytes = self._budget_bytes - FIRST_TEMPORARIES * self._count.largest
        while self._count.total + self._waiting_bytes() > budget_bytes and self._waiting:
            costs = {}
            for each, waiting in list(self._waiting.items()):
                num_bytes = self._freed_bytes(each, waiting)
                if num_bytes == 0:
                    del self._waiting[each]
                else:
                    costs[each] = self._span(each).seconds / num_bytes
            if costs:
                cheapest = min(costs, key=costs.__getitem__)
                self._drop(cheapest, self._waiting[cheapest])

    def _freed_bytes(self, index: int, call: ModuleCall) -> int:
        """Return what is free once a call is dropped; 0 where it is not worth while."""
        span, inputs = self._span(index), call.inputs
        held = [reference() for reference in self._holders[span.start : span.end]]
        kept = Counter(
            holder.address
            for holder in held
            if holder is not None and holder.tensor is not None and holder.address is not None
        )
        freed_bytes = sum(
            self._count.size(address)
            for address, num_uses in kept.items()
            if address not in inputs and num_uses == self._count.num_uses(address)
        )
        freed_bytes -= sum(
            num_bytes for address, num_bytes in inputs.items() if not self._count.num_uses(address)
        )
        kept_bytes = sum(self._count.size(address) for address in kept)
        return freed_bytes if freed_bytes > MIN_GAIN * kept_bytes else 0

    def _waiting_bytes(self) -> int:
        """Return what waiting calls hold that autograd does not."""
        held = {
            address: num_bytes
            for call in self._waiting.values()
            for address, num_bytes in call.inputs.items()
            if not self._count.num_uses(address)
        }
        return sum(held.values())

    def _span(self, index: int) -> CallSpan:
        span = self._spans[index]
        assert span is not None
        return span

    def _drop(self, index: int, call: ModuleCall) -> None:
        span = self._span(index)
        call.drop(self._holders[span.start : span.end])
        inner = [
            each
            for each, inner_span in enumerate(self._spans)
            if inner_span is not None and is_within(inner_span, span)
        ]
        for each in inner:
            self._waiting.pop(each, None)
            self._dropped.pop(each, None)
        self._dropped[index] = call.name

    def saved_by_layer(self) -> list[tuple[str, int]]:
        """Return the bytes that are saved in each layer of the model, by name, the largest first.

        Of a module with more than a quarter of all, the modules within it are layers.
        """
        first_use: dict[int, int] = {}
        for position, number in enumerate(self._storages):
            first_use.setdefault(number, position)
        total_bytes = sum(self._sizes.get(number, 0) for number in first_use)
        layers: dict[str, int] = {}
        position = 0
        for span, reference in zip(self._spans, self._modules, strict=True):
            module = reference()
            if span is None or module is None or span.start < position:
                continue  # (it is within a layer)
            num_bytes = sum(
                self._sizes.get(number, 0)
                for number, place in first_use.items()
                if span.start <= place < span.end
            )
            has_parts = next(module.children(), None) is not None
            if has_parts and num_bytes > LARGE_LAYER * total_bytes:
                continue
            name = self._names[module]
            layers[name] = layers.get(name, 0) + num_bytes
            position = span.end
        return sorted(layers.items(), key=lambda layer: -layer[1])

    def planned(self, dropped: Collection[int]) -> Planned:
        """Return this forward as one that another is to be like."""
        return Planned(self.trace(), tuple(self._modules), dropped)

    def peak_bytes(self) -> int:
        """Return the most that its saved tensors take in backward, with what each needs there.

        That is the gradients of its operator's output and input, and as much for the kernel.
        """
        return self.trace().peak_bytes(self._dropped.keys(), num_temporaries=3)

    def names_of_dropped(self) -> list[str]:
        """Return the names of the modules whose calls were dropped."""
        return list(self._dropped.values())

    def trace(self) -> ForwardTrace:
        """Return what was saved, with the calls that can be recomputed, by index."""
        return ForwardTrace(
            saved=tuple(self._storages), sizes=self._sizes, calls=tuple(self._spans)
        )
