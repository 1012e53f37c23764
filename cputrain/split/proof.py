"""Proves by a model's structure that its batch can be divided, on copies of the model.

A forward with two samples and one with the whole batch pass a `Recorder`: each operator must keep
samples apart, and be the same for both. Whatever can be reached from the model must be afterwards
what it was before, but for the buffers of batch norm and those that all replicas write alike.
"""

from __future__ import annotations

import torch
from torch import nn

from cputrain.split import backward_functions
from cputrain.split.batch import leaves_of
from cputrain.split.compare import CannotSplitError
from cputrain.split.devices import CPU
from cputrain.split.draws import Draws
from cputrain.split.meeting import Meeting
from cputrain.split.model_state import (
    StateCopier,
    changes,
    reachable,
    snapshot,
    surroundings,
)
from cputrain.split.part import Part
from cputrain.split.sharding_rules import Opaque, Reduced, SampleIndex, Shard
from cputrain.split.trace import CannotShard, Recorder
from cputrain.split.views import home_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.call import Calls

FEW = 2
"""Samples of the forward that the whole batch is compared with."""

WITH_STORAGE = ("cpu", "cuda", "xpu", "mps")
"""Devices whose tensors have storages that views share; models elsewhere are proved on the CPU."""


class Proof:
    """What holds for calls of one kind."""

    def __init__(self, model: nn.Module, call: Calls, arguments: Arguments) -> None:
        """Raises CannotSplitError, or what the model itself raises. Nothing of it stays."""
        self._call = call
        self._reference = self._run(model, arguments, FEW, None)
        self.is_proved_for_one = False
        self.largest = FEW
        """The number of samples of the largest batch that was proved."""
        self.extend(model, arguments)

    def extend(self, model: nn.Module, arguments: Arguments) -> None:
        """Prove it for a batch of another size."""
        recorder = self._run(model, arguments, arguments.size, self._reference)
        self.needs_two_samples = recorder.needs_two_samples
        self.largest = max(self.largest, arguments.size)

    def extend_to_one(self, model: nn.Module, arguments: Arguments) -> None:
        """Prove it for shards of one sample, or find out that they have to have two."""
        if self.is_proved_for_one or self.needs_two_samples:
            return
        try:
            self._run(model, arguments, 1, self._reference)
        except Exception:  # the model's own, of which one sample may be too few
            self.needs_two_samples = True
        else:
            self.is_proved_for_one = True

    def _run(
        self, model: nn.Module, arguments: Arguments, size: int, reference: Recorder | None
    ) -> Recorder:
        home = home_of(model)
        if home.type not in WITH_STORAGE:
            home = CPU
        copier = StateCopier(lambda value: value.to(home, copy=True))
        copied = copier.copy(model)
        leaves = [
            _copied(leaf, home) if isinstance(leaf, torch.Tensor) else copier.copy(leaf)
            for leaf in arguments.part((0, size))
        ]
        args, options = arguments.built(leaves)
        recorder = Recorder(copied, size, _tensors(copied), reference)
        for leaf, dim in zip(leaves, arguments.dims, strict=True):
            if isinstance(leaf, torch.Tensor):
                recorder.place(leaf, dim)
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        around = surroundings(copied)
        before = [{} if reference is None else snapshot(one) for one in (copied, others, around)]
        part = Part(0, (0, size), size, Meeting(1), Draws(1, None, home), trace=recorder)
        try:
            with part, recorder:
                output = self._call(copied, *args, **options)
            backward_functions.trace(recorder, leaves_of(output)[0])
            recorder.finish()
        except CannotShard as refusal:
            raise CannotSplitError(str(refusal)) from None
        if reference is not None:
            if changes(before[1], snapshot(others)):
                raise CannotSplitError("it changes an argument that is no tensor")
            if changes(before[2], snapshot(surroundings(copied))):
                raise CannotSplitError("it changes a global variable or an attribute of a class")
            _same_state(copied, before[0])
            self.reduced = _look_at_outputs(recorder, output)
            """The numbers of outputs that are losses of the whole batch."""
        return recorder


def _copied(leaf: torch.Tensor, home: torch.device) -> torch.Tensor:
    return leaf.detach().to(home, copy=True).requires_grad_(leaf.requires_grad)


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in reachable(model):
        if isinstance(value, torch.Tensor):
            yield name, value


def _same_state(model: nn.Module, before: dict[str, Any]) -> None:
    """Raise where a forward has changed what a divided one would change in every replica."""
    buffers = {id(buffer) for buffer in model.buffers()}
    after = snapshot(model)
    differ = changes(before, after)
    values = dict(reachable(model)) if differ else {}
    for name in differ:
        value = values.get(name.rstrip("'"))
        is_same = name in before and name in after and before[name][0] == after[name][0]
        if isinstance(value, torch.Tensor) and id(value) in buffers and is_same:
            continue  # the recorder has seen what was written
        raise CannotSplitError(_changed(model, name, value, is_same=is_same))


def _changed(model: nn.Module, name: str, value: Any, *, is_same: bool) -> str:
    modules = dict(model.named_modules())
    owner, _, attribute = name.rstrip("'").rpartition(".")
    if isinstance(value, torch.Tensor) and is_same:
        return f"it writes to {name} while it runs"
    if owner not in modules or "[" in attribute:
        return f"it changes {name} while it runs"
    kind = type(modules[owner]).__name__
    where = f"{owner} ({kind})" if owner else kind
    return f"{where} sets self.{attribute} while it runs"


def _look_at_outputs(recorder: Recorder, output: Any) -> frozenset[int]:
    """Raise where outputs cannot be put together; return the numbers of those that are losses."""
    leaves = leaves_of(output)[0]
    losses: set[int] = set()
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        name = f"its output {number}" if len(leaves) > 1 else "its output"
        layout = recorder.layout(leaf)
        if isinstance(layout, Reduced):
            losses.add(number)
        if isinstance(layout, SampleIndex | Opaque):
            raise CannotSplitError(f"{name} has the numbers of samples")
        if recorder.is_argument(leaf):
            raise CannotSplitError(f"{name} is an argument, or a view of one")
        if isinstance(layout, Shard) and leaf.shape[layout.dim] != (
            recorder.num_samples * layout.inner
        ):
            raise CannotSplitError(f"{name} has samples in an order that cannot be put together")
    return frozenset(losses)
