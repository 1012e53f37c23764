"""Structural proof that a model's batch can be sharded, made on copies of the model.

A forward with two samples and one with the whole batch run under an `OperatorRecorder`: each
operator must keep samples apart, and both runs must have the same operators. A forward must leave
every object that is reachable from the model unchanged, except the buffers of batch norm and those
that all replicas write with the same values.
"""

from __future__ import annotations

from contextvars import copy_context
from enum import Enum

import torch
from torch import nn

from cputrain.runtime.effects import EffectError, without_effects
from cputrain.split.devices import CPU
from cputrain.split.execution.context import ReplicaContext, end_checkpoints
from cputrain.split.execution.replica import home_of
from cputrain.split.outputs import leaves_of
from cputrain.split.proof import backward_functions
from cputrain.split.proof.model_state import (
    GlobalState,
    StateCopier,
    changes,
    reachable,
    snapshot,
    uncopied,
)
from cputrain.split.proof.read_names import ReadNames
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.sharding import Opaque, Reduced, SampleIndex, Shard
from cputrain.split.proof.trace import CannotShard, OperatorRecorder
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
"""Number of samples of the reference forward, which the whole batch is compared with."""

PLAIN_LEAVES = (
    int | float | complex | str | bytes | None | torch.dtype | torch.device | torch.Size
)  # fmt: skip
"""Types that an output may contain besides tensors; they are compared by value."""

WITH_STORAGE = ("cpu", "cuda", "xpu", "mps")
"""Types of devices with storages that views share; other models are copied to the CPU."""


class Proof:
    """Proof that calls with one kind of arguments can be sharded, and for which sizes it holds."""

    def __init__(self, model: nn.Module, call: Calls, arguments: Arguments) -> None:
        """Prove it or raise CannotSplitError or the model's error; leave the model as it is."""
        self._call = call
        self._max_size = FEW
        self._min_shape: list[int] = []
        self._max_shape: list[int] = []
        self._is_proved_for_one_sample = False
        self.needs_two_samples = False
        self.written: frozenset[str] = frozenset()
        """Names of the buffers that a forward writes to."""
        self.answers: set[tuple[bool, ...]] = set()
        """Results of reductions over the batch, such as `mask.all()`, of each proved forward."""
        self._last_answers: list[bool] = []
        """Results of these reductions in the last forward."""
        self.read: ReadNames
        """Names of the attributes that a forward may read."""
        self.reduced: frozenset[int] = frozenset()
        """Indices of the outputs that are losses of the whole batch."""
        self.extend(model, arguments)

    @property
    def asks(self) -> bool:
        """Whether the model branches on a reduction over the whole batch, such as `mask.all()`."""
        return any(self.answers)

    def holds_for(self, arguments: Arguments) -> bool:
        """Return whether batch size and shapes lie between those of the proved batches."""
        return arguments.size <= self._max_size and all(
            lower <= size <= upper
            for lower, size, upper in zip(
                self._min_shape, arguments.shape, self._max_shape, strict=True
            )
        )

    def extend(self, model: nn.Module, arguments: Arguments) -> None:
        """Extend the proof to a batch of another size, or with other results of its reductions."""
        self.read = ReadNames(model)
        recorder = self._run_consistently(model, arguments)
        self.answers.add(tuple(recorder.answers))
        self.needs_two_samples |= recorder.needs_two_samples
        self._max_size = max(self._max_size, arguments.size)
        shape = arguments.shape
        self._min_shape = [*map(min, self._min_shape or shape, shape)]
        self._max_shape = [*map(max, self._max_shape or shape, shape)]

    def _run_consistently(self, model: nn.Module, arguments: Arguments) -> OperatorRecorder:
        """Run the reference and the whole batch with the same results of reductions.

        The reference is repeated with the results of the whole batch until both agree. The whole
        batch draws the random numbers that a call would draw now.
        """
        generators = Generators(home_of(model))
        states, answers = generators.get(), list[bool]()
        while True:
            reference = self._run(model, arguments, FEW, None, answers)
            generators.set(states)
            try:
                return self._run_largest(model, arguments, reference)
            except CannotSplitError:
                new_answers = self._last_answers
                if new_answers == reference.answers[: len(new_answers)] or len(new_answers) <= len(
                    answers
                ):
                    raise
                answers = new_answers  # those that are known by now
            generators.set(states)

    def _run_largest(
        self, model: nn.Module, arguments: Arguments, reference: OperatorRecorder
    ) -> OperatorRecorder:
        """Run the whole batch; halve it until it fits into the device's memory."""
        size = arguments.size
        while True:
            try:
                return self._run(model, arguments, size, reference)
            except torch.OutOfMemoryError:
                if size // 2 <= FEW:
                    raise
                size //= 2

    def extend_to_one(self, model: nn.Module, arguments: Arguments) -> None:
        """Extend the proof to shards of one sample, or set `needs_two_samples`."""
        if self._is_proved_for_one_sample or self.needs_two_samples:
            return
        answers = next(iter(self.answers))
        try:
            reference = self._run(model, arguments, FEW, None, answers)
            self._run(model, arguments, 1, reference, answers)
        except Exception:  # also errors of the model, for which one sample may be too few
            self.needs_two_samples = True
        else:
            self._is_proved_for_one_sample = True

    def _run(
        self,
        model: nn.Module,
        arguments: Arguments,
        size: int,
        reference: OperatorRecorder | None,
        answers: Sequence[bool] = (),
    ) -> OperatorRecorder:
        """Run a forward of copies under a recorder; raise CannotSplitError where it must not split.

        `answers` are the results of the first reductions over the batch.
        """
        home = home_of(model)
        if home.type not in WITH_STORAGE:
            home = CPU
        read_names = self.read
        if name := uncopied((model, arguments.leaves), read_names):
            raise CannotSplitError(f"it holds {name}")
        copier = StateCopier(lambda value: value.to(home, copy=True), read_names)
        copied = copier.copy(model)
        leaves = [
            _copied(leaf, home) if isinstance(leaf, torch.Tensor) else copier.copy(leaf)
            for leaf in arguments.part((0, size))
        ]
        args, options = arguments.built(leaves)
        recorder = OperatorRecorder(copied, size, _tensors(copied, read_names), reference, answers)
        for leaf, dim in zip(leaves, arguments.dims, strict=True):
            if isinstance(leaf, torch.Tensor):
                recorder.set_batch_dim(leaf, dim)
        inputs = args, options
        context = copy_context()
        # (held so that no address is used twice)
        keep_alive = list(reachable((copied, inputs), read_names))
        globals_state = GlobalState(copied)
        before = snapshot(copied, read_names), snapshot(inputs)
        shard_context = ReplicaContext(
            0, (0, size), size, ReplicaBarrier(1), SharedDraws(1, None, home), trace=recorder
        )
        try:
            with without_effects(is_output_only=True):
                with shard_context, recorder:
                    output = context.run(self._call, copied, *args, **options)
                backward_functions.trace(recorder, leaves_of(output)[0])
            recorder.finish()
        except EffectError as effect:
            raise CannotSplitError(str(effect)) from None
        except CannotShard as refusal:
            end_checkpoints(refusal)
            raise CannotSplitError(str(refusal)) from None
        finally:
            self._last_answers = recorder.answers
            changed_name = globals_state.restore()
        if changed_name:
            raise CannotSplitError(f"it changes {changed_name} while it runs")
        if name := _changed_context_variable(context):
            raise CannotSplitError(f"it sets the context variable {name} while it runs")
        self.written |= _check_state(copied, read_names, before, inputs)
        recorder.output = _outline_of_output(output)
        if reference is not None:
            _check_outlines(recorder.output, reference.output)
            if size > 1:
                self.reduced = _check_outputs(recorder, output)
        del keep_alive
        return recorder


def _changed_context_variable(context: Context) -> str:
    """Return the name of a context variable that differs from this thread's, or ""."""
    current = copy_context()
    for variable, value in context.items():
        if variable not in current or current[variable] is not value:
            return variable.name
    return ""


def _copied(leaf: torch.Tensor, home: torch.device) -> torch.Tensor:
    """Return a leaf tensor with a copy of the values, on the home device."""
    return leaf.detach().to(home, copy=True).requires_grad_(leaf.requires_grad)


def _tensors(model: nn.Module, read_names: ReadNames) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over names and tensors that are reachable from the model."""
    for name, value in reachable(model, read_names):
        if isinstance(value, torch.Tensor):
            yield name, value


def _check_state(
    model: nn.Module,
    read_names: ReadNames,
    snapshots: tuple[dict[str, Any], dict[str, Any]],
    inputs: Any,
) -> set[str]:
    """Return the names of the buffers that a forward has written to.

    `snapshots` hold the states of the model and of its arguments before the forward. Raise
    CannotSplitError where it has changed other state, which each replica would change.
    """
    before, arguments = snapshots
    values_by_name = dict(reachable(inputs))
    for name in changes(arguments, snapshot(inputs)):
        value = values_by_name.get(name.rstrip("'"))
        if isinstance(value, torch.Tensor) and name in arguments:
            # shards are views of the caller's tensor and share its version counter
            raise CannotSplitError("it writes to a tensor that is an argument")
        raise CannotSplitError("it changes an argument that is no tensor")
    buffers = {id(buffer): name for name, buffer in model.named_buffers()}
    after = snapshot(model, read_names)
    changed_names = changes(before, after)
    values = dict(reachable(model, read_names)) if changed_names else {}
    written: set[str] = set()
    for name in changed_names:
        value = values.get(name.rstrip("'"))
        is_same = name in before and name in after and before[name][0] == after[name][0]
        if isinstance(value, torch.Tensor) and id(value) in buffers and is_same:
            written.add(buffers[id(value)])  # the recorder has checked the written values
            continue
        raise CannotSplitError(_change_message(model, name, value, is_same=is_same))
    return written | {
        name
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if buffers[id(buffer)] in written
    }


def _change_message(model: nn.Module, name: str, value: Any, *, is_same: bool) -> str:
    """Return the sentence that names a changed value."""
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
    """Return the parts of an output that must not depend on the number of samples."""
    leaves, structure = leaves_of(output)
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor | Enum | PLAIN_LEAVES):
            raise CannotSplitError(
                f"its output {index} is of {type(leaf).__name__}, which torch's pytree does not "
                "look into"
            )
    return structure, [
        None if isinstance(item, torch.Tensor) else (type(item), repr(item)) for item in leaves
    ]


def _check_outlines(outline: Any, reference: Any) -> None:
    """Raise where the non-tensor parts of outputs for two batch sizes differ."""
    if outline[0] != reference[0]:
        raise CannotSplitError("the form of its output depends on the size of the batch")
    for index, (value, expected) in enumerate(zip(outline[1], reference[1], strict=True)):
        if value != expected:
            raise CannotSplitError(
                f"its output {index} is {value[1]}, and {expected[1]} for a part of the batch"
            )


def _check_outputs(recorder: OperatorRecorder, output: Any) -> frozenset[int]:
    """Raise where outputs cannot be concatenated; return the indices of those that are losses."""
    leaves = leaves_of(output)[0]
    losses: set[int] = set()
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        name = f"its output {index}" if len(leaves) > 1 else "its output"
        layout = recorder.layout(leaf)
        if isinstance(layout, Reduced):
            losses.add(index)
        if isinstance(layout, SampleIndex | Opaque):
            raise CannotSplitError(f"{name} has the numbers of samples")
        if recorder.is_argument(leaf):
            raise CannotSplitError(f"{name} is an argument, or a view of one")
        if isinstance(layout, Shard) and leaf.shape[layout.dim] != (
            recorder.num_samples * layout.inner
        ):
            raise CannotSplitError(f"{name} has samples in an order that cannot be put together")
    return frozenset(losses)
