"""One call of a model and its backward as two lists of launches, for tensors of the same layout."""

from __future__ import annotations

import random
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as tree

from cputrain.opencl.device import MIN_BLOCK_BYTES
from cputrain.opencl.generator import generator_of
from cputrain.opencl.graphs.capture import CAPTURES, Capture
from cputrain.opencl.graphs.launch_list import LaunchList, Slot
from cputrain.opencl.shapes import is_dense
from cputrain.opencl.tensor import OclTensor, interned_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from cputrain.opencl.device import Device, DeviceMemory
    from cputrain.opencl.tensor import TensorMeta

MIN_LAUNCHES = 12
"""Least number of launches of a forward and backward that is replayed: others gain nothing."""


class CaptureError(Exception):
    """A call cannot be replayed; the message says why."""


class Argument(NamedTuple):
    """Arguments of launches that take a buffer which differs from replay to replay."""

    forward: tuple[Slot, ...]
    backward: tuple[Slot, ...]


class Allocated(NamedTuple):
    """Memory that is new in each replay: its size, the bytes that are used, and who takes it."""

    size: int
    used: int
    slots: Argument


class Part:
    """The launches of a forward or of a backward, and what is bound to them now.

    Args:
        device: The device.
        capture: Where the launches were captured.
        begin: Index of the first of them.
        end: Index behind the last.
    """

    def __init__(self, device: Device, capture: Capture, begin: int, end: int) -> None:
        self._device = device
        self.launches = LaunchList(device, capture.launches[begin:end])
        self._draws = [
            (count, *([Slot(each.launch - begin, each.argument) for each in slots if begin <= each.launch < end] for slots in (seeds, offsets)))
            for count, seeds, offsets in capture.draws()
        ]
        self._draws = [draw for draw in self._draws if draw[1] or draw[2]]
        self.has_draws = bool(self._draws)
        self._bound: dict[tuple[Slot, ...], Any] = {}
        self._seed: int | None = None

    def bind(self, slots: tuple[Slot, ...], buffer: Any) -> None:
        """Have the launches use a buffer."""
        if slots and self._bound.get(slots) is not buffer:
            self.launches.bind(slots, buffer)
            self._bound[slots] = buffer

    def run(self) -> None:
        """Enqueue the launches, with random numbers of their own."""
        with self._device.lock:
            if self._draws:
                self._bind_random_numbers()
            self.launches.enqueue()

    def _bind_random_numbers(self) -> None:
        count = sum(draw[0] for draw in self._draws)
        seed, offset = generator_of(self._device.index).reserve(count)
        for number, seeds, offsets in self._draws:
            if seed != self._seed:
                self.launches.bind(seeds, np.uint64(seed))
            self.launches.bind(offsets, np.uint64(offset))
            offset += number
        self._seed = seed


class Result(NamedTuple):
    """A tensor that a replay returns: where its memory is, and its metadata.

    `allocated` is an index among new memory; None if it is that of the incoming gradient `gradient`.
    """

    allocated: int | None
    gradient: int
    metadata: TensorMeta


class GraphedCall:
    """A captured call with its backward.

    Raises CaptureError.

    Args:
        call: Calls the model.
        model: The model.
        args: Arguments of the call.
        kwargs: Its named arguments.
        trained: Parameters that need a gradient.
        held: Tensors that the forward may read beside its arguments.
        gradients: Metadata of the gradients of outputs that `backward` gives, by their index.
    """

    def __init__(
        self, call: Callable[..., Any], model: Any, args: Any, kwargs: Any,
        trained: Sequence[Tensor], held: Sequence[OclTensor],
        gradients: dict[int, TensorMeta],
    ) -> None:  # fmt: skip
        leaves, structure = tree.tree_flatten((args, kwargs))
        leaves = [at_offset_0(leaf) if isinstance(leaf, OclTensor) else leaf for leaf in leaves]
        inputs = [leaf for leaf in leaves if isinstance(leaf, OclTensor)]
        self.device: Device = held[0].memory.device
        self.gradients = gradients
        self.trained = trained
        self._held = held
        self.buffers = [each for each in held if not each.requires_grad]
        """Tensors beside the arguments that need no gradient."""
        self._lock = threading.Lock()
        self._flight: Callable[[], Flight | None] = lambda: None
        states = _RandomStates()
        if self.device in CAPTURES:
            raise CaptureError("another graph is being captured")
        capture = Capture(self.device)
        buffers: list[Any] = []
        try:
            capture.begin()
            try:
                self._capture(capture, call, model, leaves, structure, inputs)
            finally:
                buffers = capture.end()
                has_drawn = states.restore()
            if has_drawn:
                raise CaptureError("forward draws random numbers on the CPU")
            self._prepare(capture, inputs, held)
        except BaseException as error:
            self.device.unpin(buffers)
            self._static = ()
            if isinstance(error, CaptureError) or not isinstance(error, Exception):
                raise
            raise CaptureError(f"{type(error).__name__}: {error}") from error
        self._static = ()  # (the memory is pinned)
        self._buffers: list[Any] = buffers

    def _capture(
        self, capture: Capture, call: Any, model: Any, leaves: list[Any], structure: Any,
        inputs: list[OclTensor],
    ) -> None:  # fmt: skip
        versions = [(each, each._version) for each in (*inputs, *self._held)]
        with torch.enable_grad():
            detached = {id(leaf): leaf.detach().requires_grad_(leaf.requires_grad) for leaf in inputs}
            args, kwargs = tree.tree_unflatten(
                [detached.get(id(leaf), leaf) for leaf in leaves], structure
            )
            returned, self.structure = tree.tree_flatten(call(model, *args, **kwargs))
        self.num_forward = len(capture.launches)
        changed = [each for each, version in versions if each._version != version]
        if any(each.requires_grad for each in changed) or not {id(leaf) for leaf in inputs}.isdisjoint(map(id, changed)):
            raise CaptureError("forward changes its arguments or a parameter in place")
        self.changed = changed
        self.constants = [None if isinstance(each, OclTensor) else (each,) for each in returned]
        if not all(each is None or _is_plain(each[0]) for each in self.constants):
            raise CaptureError("the model returns something that is neither a tensor nor a number")
        outputs = [each for each in returned if isinstance(each, OclTensor)]
        wanted = [detached[id(leaf)] for leaf in inputs if leaf.requires_grad]
        self.needs_grad = [output.requires_grad for output in outputs]
        incoming = {
            index: metadata.tensor_in(self.device.allocate(MIN_BLOCK_BYTES, MIN_BLOCK_BYTES))
            for index, metadata in self.gradients.items()
        }
        if any(index >= len(outputs) or not self.needs_grad[index] for index in incoming):
            raise CaptureError("gradients are those of other outputs")
        taken = torch.autograd.grad(
            [outputs[index] for index in incoming], [*wanted, *self.trained],
            list(incoming.values()), allow_unused=True,
        )  # fmt: skip
        self._static = (outputs, incoming, taken, detached)

    def _prepare(
        self, capture: Capture, inputs: Sequence[OclTensor], held: Sequence[OclTensor]
    ) -> None:
        outputs, incoming, taken, _ = self._static
        if len(capture.launches) < MIN_LAUNCHES:
            raise CaptureError("it has few launches")
        uses = _Uses(capture, self.num_forward)
        own = {id(each.memory.buffer) for each in held}
        given = {id(each.memory.buffer): index for index, each in enumerate(inputs)}
        asked = {id(each.memory.buffer): index for index, each in incoming.items()}
        if len(given) < len(inputs) or not own.isdisjoint(given):
            raise CaptureError("arguments share memory")
        known = own | given.keys() | asked.keys() | capture.born.keys()
        if not uses.buffers <= known:
            raise CaptureError("forward reads a tensor that is no parameter, buffer or attribute")
        if not all(draw.seeds and draw.offsets for draw in capture.draws()):
            raise CaptureError("a kernel computes with the position of its random numbers")
        end = len(capture.launches)
        self.forward = Part(self.device, capture, 0, self.num_forward)
        self.backward = Part(self.device, capture, self.num_forward, end)
        self.inputs = [uses.slots(each.memory.buffer, 0) for each in inputs]
        self.incoming = {index: uses.slots(each.memory.buffer, 0) for index, each in incoming.items()}
        self.read_again = {
            id(each) for each in self.trained if uses.slots(each.memory.buffer, 0).backward
        }
        """Ids of the parameters that the backward reads."""
        self.new_outputs, self.results = self._results(capture, uses, outputs, 0, {})
        if len(self.new_outputs) < len(outputs):
            raise CaptureError("outputs share memory")
        grads = [grad for grad in taken if grad is not None]
        self.new_gradients, gradient_results = self._results(
            capture, uses, grads, self.num_forward, asked
        )
        results = iter(gradient_results)
        self.gradient_results = [None if grad is None else next(results) for grad in taken]

    def _results(
        self, capture: Capture, uses: _Uses, tensors: Sequence[OclTensor], begin: int,
        asked: dict[int, int],
    ) -> tuple[list[Allocated], list[Result]]:  # fmt: skip
        numbers: dict[int, int] = {}
        new: list[Allocated] = []
        results = []
        for tensor in tensors:
            memory = tensor.memory
            key = id(memory.buffer)
            if key in asked:
                results.append(Result(None, asked[key], tensor.metadata))
                continue
            if capture.born.get(key, -1) < begin:
                raise CaptureError("a result is in the memory of an argument or of another result")
            if key not in numbers:
                numbers[key] = len(new)
                slots = uses.slots(memory.buffer, capture.born[key])
                new.append(Allocated(memory.size, memory.used, slots))
            results.append(Result(numbers[key], 0, tensor.metadata))
        return new, results

    def begin(self) -> Flight | None:
        """Return the state of a new call; None while the tensors of another are needed."""
        with self._lock:
            flight = self._flight()
            if flight is not None and not flight.is_over:
                return None
            flight = Flight()
            self._flight = weakref.ref(flight)
            return flight

    @property
    def is_idle(self) -> bool:
        """Return whether no backward is to come that needs what the last forward has left."""
        flight = self._flight()
        return flight is None or flight.is_over

    def run_forward(self, inputs: Sequence[OclTensor]) -> list[OclTensor]:
        """Replay the forward for these arguments; return its outputs."""
        part = self.forward
        for slots, each in zip(self.inputs, inputs, strict=True):
            part.bind(slots.forward, each.memory.buffer)
        memories = self._allocate(self.new_outputs)
        for new, memory in zip(self.new_outputs, memories, strict=True):
            part.bind(new.slots.forward, memory.buffer)
        part.run()
        return [result.metadata.tensor_in(memories[result.allocated or 0]) for result in self.results]

    def run_backward(
        self, inputs: Sequence[OclTensor | None], outputs: Sequence[OclTensor | None],
        gradients: Sequence[OclTensor | None],
    ) -> list[OclTensor | None]:  # fmt: skip
        """Replay the backward; return the gradients of arguments and parameters."""
        part = self.backward
        for slots, each in zip(self.inputs, inputs, strict=True):
            if each is not None:
                part.bind(slots.backward, each.memory.buffer)
        for new, each in zip(self.new_outputs, outputs, strict=True):
            if each is not None:
                part.bind(new.slots.backward, each.memory.buffer)
        for index, slots in self.incoming.items():
            part.bind(slots.backward, gradients[index].memory.buffer)  # type: ignore[union-attr]
        memories = self._allocate(self.new_gradients)
        for new, memory in zip(self.new_gradients, memories, strict=True):
            part.bind(new.slots.backward, memory.buffer)
        part.run()
        return [
            None if result is None
            else result.metadata.tensor_in(memories[result.allocated]) if result.allocated is not None
            else result.metadata.view_of(gradients[result.gradient])  # type: ignore[arg-type]
            for result in self.gradient_results
        ]  # fmt: skip

    def _allocate(self, new: Sequence[Allocated]) -> list[DeviceMemory]:
        return [self.device.allocate(each.size, each.used) for each in new]

    def drop(self) -> None:
        """Return the memory to the allocator; the call is not replayed again."""
        buffers, self._buffers = self._buffers, []
        self.device.unpin(buffers)

    def __del__(self) -> None:
        if self.__dict__.get("_buffers"):
            self.drop()


def at_offset_0(tensor: OclTensor) -> OclTensor:
    """Return a tensor that begins where its memory does: itself if it does, else a copy."""
    return tensor if not tensor.metadata.offset else tensor.clone(memory_format=torch.preserve_format)


def layout_of(tensor: OclTensor) -> Any:
    """Return the metadata of `at_offset_0` of a tensor."""
    metadata = tensor.metadata
    if not metadata.offset:
        return metadata
    if not is_dense(metadata.size, metadata.stride):
        return None
    return interned_meta(metadata.device, metadata.size, metadata.stride, 0, metadata.dtype)


class Flight:
    """A replayed forward whose backward may come."""

    is_over = False


class _Uses:
    """Which launches use which buffers.

    Args:
        capture: The launches.
        num_forward: How many of them are those of the forward.
    """

    def __init__(self, capture: Capture, num_forward: int) -> None:
        self._slots: dict[int, list[Slot]] = {}
        self._num_forward = num_forward
        for number, launch in enumerate(capture.launches):
            for index, value in enumerate(launch.arguments):
                if capture.device.is_writable_buffer(value):
                    self._slots.setdefault(id(value), []).append(Slot(number, index))

    @property
    def buffers(self) -> set[int]:
        """Return the ids of all buffers that launches use."""
        return set(self._slots)

    def slots(self, buffer: Any, begin: int) -> Argument:
        """Return the arguments that take a buffer, from a launch on."""
        num_forward = self._num_forward
        slots = [each for each in self._slots.get(id(buffer), ()) if each.launch >= begin]
        return Argument(
            tuple(each for each in slots if each.launch < num_forward),
            tuple(
                Slot(each.launch - num_forward, each.argument)
                for each in slots
                if each.launch >= num_forward
            ),
        )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str | bool)


class _RandomStates:
    """States of the generators on the CPU, as they are now."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state(legacy=True)

    def restore(self) -> bool:
        """Go back to these states; return whether there were others."""
        before = _RandomStates()
        if (
            torch.equal(before._torch, self._torch)
            and before._python == self._python
            and np.array_equal(before._numpy[1], self._numpy[1])
            and before._numpy[2:] == self._numpy[2:]
        ):
            return False
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        return True
