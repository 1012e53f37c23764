"""Proves by a model's structure that its batch can be divided, on copies of the model.

A forward with two samples and one with the whole batch pass a `Recorder`: each operator must keep
samples apart, and be the same for both. Whatever can be reached from the model must be afterwards
what it was before, but for the buffers of batch norm and those that all replicas write alike.
"""

from __future__ import annotations

from contextvars import copy_context
from enum import Enum

import torch
from torch import nn

from cputrain.split.devices import CPU
from cputrain.split.execution.context import ReplicaContext, end_checkpoints
from cputrain.split.execution.replica import home_of
from cputrain.split.outputs import leaves_of
from cputrain.split.proof import backward_functions
from cputrain.split.proof.model_state import (
    StateCopier,
    Surroundings,
    changes,
    reachable,
    snapshot,
    uncopied,
)
from cputrain.split.proof.read_names import ReadNames
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.sharding import Opaque, Reduced, SampleIndex, Shard
from cputrain.split.proof.trace import CannotShard, Recorder
from cputrain.split.sync.barrier import ReplicaBarrier
from cputrain.split.sync.rng import Generators, SharedDraws

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextvars import Context
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.execution.autograd import Calls

FEW = 2
"""Samples of the forward that the whole batch is compared with."""

PLAIN_LEAVES = (
    int | float | complex | str | bytes | None | torch.dtype | torch.device | torch.Size
)  # fmt: skip
"""What may be in an output beside tensors: it is compared by value."""

WITH_STORAGE = ("cpu", "cuda", "xpu", "mps")
"""Devices whose tensors have storages that views share; models elsewhere are proved on the CPU."""


class Proof:
    """What holds for calls of one kind."""

    def __init__(self, model: nn.Module, call: Calls, arguments: Arguments) -> None:
        """Raises CannotSplitError, or what the model itself raises. Nothing of it stays."""
        self._call = call
        self._largest = FEW
        self._least_shape: list[int] = []
        self._largest_shape: list[int] = []
        self._is_proved_for_one = False
        self.needs_two_samples = False
        self.written: frozenset[str] = frozenset()
        """Names of the buffers that a forward writes to."""
        self.answers: set[tuple[bool, ...]] = set()
        """Answers to questions about the whole batch, of each forward that was proved."""
        self._answered: list[bool] = []
        """Those of the last forward."""
        self.read: ReadNames
        """The attributes that a forward may read."""
        self.reduced: frozenset[int] = frozenset()
        """The numbers of outputs that are losses of the whole batch."""
        self.extend(model, arguments)

    @property
    def asks(self) -> bool:
        """Whether the model asks questions about the whole batch."""
        return any(self.answers)

    def holds_for(self, arguments: Arguments) -> bool:
        """Whether the sizes are between those of batches that were proved."""
        return arguments.size <= self._largest and all(
            least <= size <= most
            for least, size, most in zip(
                self._least_shape, arguments.shape, self._largest_shape, strict=True
            )
        )

    def extend(self, model: nn.Module, arguments: Arguments) -> None:
        """Prove it for a batch of another size, or of which questions have other answers."""
        self.read = ReadNames(model)
        recorder = self._run_alike(model, arguments)
        self.answers.add(tuple(recorder.answers))
        self.needs_two_samples |= recorder.needs_two_samples
        self._largest = max(self._largest, arguments.size)
        shape = arguments.shape
        self._least_shape = [*map(min, self._least_shape or shape, shape)]
        self._largest_shape = [*map(max, self._largest_shape or shape, shape)]

    def _run_alike(self, model: nn.Module, arguments: Arguments) -> Recorder:
        """Run few samples and the whole batch; few of them with the answers of the whole.

        The whole draws the random numbers that a call would draw now.
        """
        generators = Generators(home_of(model))
        states, answers = generators.get(), list[bool]()
        while True:
            reference = self._run(model, arguments, FEW, None, answers)
            generators.set(states)
            try:
                return self._run_largest(model, arguments, reference)
            except CannotSplitError:
                found = self._answered
                if found == reference.answers[: len(found)] or len(found) <= len(answers):
                    raise
                answers = found  # as far as they are known by now
            generators.set(states)

    def _run_largest(self, model: nn.Module, arguments: Arguments, reference: Recorder) -> Recorder:
        """Run the whole batch; where a device has no memory for it, as much as it has."""
        size = arguments.size
        while True:
            try:
                return self._run(model, arguments, size, reference)
            except torch.OutOfMemoryError:
                if size // 2 <= FEW:
                    raise
                size //= 2

    def extend_to_one(self, model: nn.Module, arguments: Arguments) -> None:
        """Prove it for shards of one sample, or find out that they have to have two."""
        if self._is_proved_for_one or self.needs_two_samples:
            return
        answers = next(iter(self.answers))
        try:
            reference = self._run(model, arguments, FEW, None, answers)
            self._run(model, arguments, 1, reference, answers)
        except Exception:  # the model's own, of which one sample may be too few
            self.needs_two_samples = True
        else:
            self._is_proved_for_one = True

    def _run(
        self,
        model: nn.Module,
        arguments: Arguments,
        size: int,
        reference: Recorder | None,
        answers: Sequence[bool] = (),
    ) -> Recorder:
        home = home_of(model)
        if home.type not in WITH_STORAGE:
            home = CPU
        read = self.read
        if name := uncopied((model, arguments.leaves), read):
            raise CannotSplitError(f"it holds {name}")
        copier = StateCopier(lambda value: value.to(home, copy=True), read)
        copied = copier.copy(model)
        leaves = [
            _copied(leaf, home) if isinstance(leaf, torch.Tensor) else copier.copy(leaf)
            for leaf in arguments.part((0, size))
        ]
        args, options = arguments.built(leaves)
        recorder = Recorder(copied, size, _tensors(copied, read), reference, answers)
        for leaf, dim in zip(leaves, arguments.dims, strict=True):
            if isinstance(leaf, torch.Tensor):
                recorder.place(leaf, dim)
        given = args, options
        context = copy_context()
        alive = list(reachable((copied, given), read))  # no address is used twice
        around = Surroundings(copied)
        before = snapshot(copied, read), snapshot(given)
        part = ReplicaContext(
            0, (0, size), size, ReplicaBarrier(1), SharedDraws(1, None, home), trace=recorder
        )
        try:
            with part, recorder:
                output = context.run(self._call, copied, *args, **options)
            backward_functions.trace(recorder, leaves_of(output)[0])
            recorder.finish()
        except CannotShard as refusal:
            end_checkpoints(refusal)
            raise CannotSplitError(str(refusal)) from None
        finally:
            self._answered = recorder.answers
            changed = around.put_back()
        if changed:
            raise CannotSplitError(f"it changes {changed} while it runs")
        if name := _variable_set(context):
            raise CannotSplitError(f"it sets the context variable {name} while it runs")
        self.written |= _same_state(copied, read, before, given)
        recorder.output = _outline_of_output(output)
        if reference is not None:
            _same_outputs(recorder.output, reference.output)
            if size > 1:
                self.reduced = _look_at_outputs(recorder, output)
        del alive
        return recorder


def _variable_set(context: Context) -> str:
    """Return the name of a variable that is another than in this thread; empty if there is none."""
    now = copy_context()
    for variable, value in context.items():
        if variable not in now or now[variable] is not value:
            return variable.name
    return ""


def _copied(leaf: torch.Tensor, home: torch.device) -> torch.Tensor:
    return leaf.detach().to(home, copy=True).requires_grad_(leaf.requires_grad)


def _tensors(model: nn.Module, read: ReadNames) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in reachable(model, read):
        if isinstance(value, torch.Tensor):
            yield name, value


def _same_state(
    model: nn.Module, read: ReadNames, snapshots: tuple[dict[str, Any], dict[str, Any]], given: Any
) -> set[str]:
    """Return the names of the buffers that a forward has written to.

    `snapshots` are those of the model and of its arguments before it. Raises where it has changed
    what a divided one would change in every replica.
    """
    before, arguments = snapshots
    inside = dict(reachable(given))
    for name in changes(arguments, snapshot(given)):
        value = inside.get(name.rstrip("'"))
        if isinstance(value, torch.Tensor) and name in arguments:
            # shards share their memory with the caller's tensor, and with it the count of writes
            raise CannotSplitError("it writes to a tensor that is an argument")
        raise CannotSplitError("it changes an argument that is no tensor")
    buffers = {id(buffer): name for name, buffer in model.named_buffers()}
    after = snapshot(model, read)
    differ = changes(before, after)
    values = dict(reachable(model, read)) if differ else {}
    written: set[str] = set()
    for name in differ:
        value = values.get(name.rstrip("'"))
        is_same = name in before and name in after and before[name][0] == after[name][0]
        if isinstance(value, torch.Tensor) and id(value) in buffers and is_same:
            written.add(buffers[id(value)])  # the recorder has seen what
            continue
        raise CannotSplitError(_changed(model, name, value, is_same=is_same))
    return written | {
        name
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if buffers[id(buffer)] in written
    }


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


def _outline_of_output(output: Any) -> Any:
    """Return what an output must have in common for all numbers of samples."""
    leaves, form = leaves_of(output)
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor | Enum | PLAIN_LEAVES):
            raise CannotSplitError(
                f"its output {number} is of {type(leaf).__name__}, which torch's pytree does not "
                "look into"
            )
    return form, [
        None if isinstance(one, torch.Tensor) else (type(one), repr(one)) for one in leaves
    ]


def _same_outputs(found: Any, reference: Any) -> None:
    """Raise where outputs for two numbers of samples differ in what is no tensor."""
    if found[0] != reference[0]:
        raise CannotSplitError("the form of its output depends on the size of the batch")
    for number, (one, other) in enumerate(zip(found[1], reference[1], strict=True)):
        if one != other:
            raise CannotSplitError(
                f"its output {number} is {one[1]}, and {other[1]} for a part of the batch"
            )


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
