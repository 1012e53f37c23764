"""One call of a model and its backward as two parts of a capture, for tensors of equal layouts."""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from cputrain.opencl.device import MIN_BLOCK_BYTES
from cputrain.opencl.graphs.autocast_state import in_autocast
from cputrain.opencl.graphs.capture import CAPTURES, REFUSED, Capture
from cputrain.opencl.graphs.part import BufferSlots, Part, Uses
from cputrain.opencl.graphs.returned import UNKNOWN_OBJECT, Returned
from cputrain.opencl.shapes import is_dense
from cputrain.opencl.tensor import OclTensor, interned_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from cputrain.opencl.device import Device
    from cputrain.opencl.tensor import TensorMeta

MIN_LAUNCHES = 12
"""Least number of launches of a forward and backward that is replayed: others gain nothing."""


FEW_LAUNCHES = "it has few launches"
"""Why a small call is not replayed."""


class CaptureError(Exception):
    """A call cannot be replayed; the message says why."""


class ModelCall(NamedTuple):
    """A call of a model."""

    function: Callable[..., Any]
    """Called with the model and the arguments."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Return what the model returns."""
        return self.function(self.model, *self.args, **self.kwargs)

    def tensors(self) -> list[OclTensor]:
        """Return the tensors among the arguments."""
        leaves = tree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, OclTensor)]

    def with_tensors(self, tensors: Sequence[OclTensor]) -> ModelCall:
        """Return the call with other tensors."""
        supply = iter(tensors)
        args, kwargs = tree.tree_map(
            lambda leaf: next(supply) if isinstance(leaf, OclTensor) else leaf,
            (self.args, self.kwargs),
        )
        return self._replace(args=args, kwargs=kwargs)


class NewMemory(NamedTuple):
    """Memory that is allocated in each replay: its size, the bytes in use, and who takes it."""

    size: int
    used: int
    slots: BufferSlots


class ReturnedTensor(NamedTuple):
    """A tensor that a replay returns."""

    memory: int
    """Index of its memory among the new one, or of the gradient whose memory it is in."""

    is_new: bool
    metadata: TensorMeta


class _CapturedTensors(NamedTuple):
    """Tensors of a capture."""

    inputs: list[OclTensor]
    outputs: list[OclTensor]
    incoming: dict[int, OclTensor]
    gradients: tuple[OclTensor | None, ...]


class GraphedCall:
    """A captured call with its backward.

    Raises CaptureError.

    Args:
        call: The call.
        trained: Parameters that need a gradient.
        held: Tensors that the forward may read beside its arguments, with these.
        gradients: Metadata of the gradients of outputs that `backward` gives, by their index.
    """

    def __init__(
        self, call: ModelCall, trained: Sequence[OclTensor], held: Sequence[OclTensor],
        gradients: Mapping[int, TensorMeta],
    ) -> None:  # fmt: skip
        self.device: Device = held[0].memory.device
        self.gradients = gradients
        """Metadata of the gradients of outputs, by their index."""
        self.trained = trained
        self.buffers = [each for each in held if not each.requires_grad]
        """Tensors beside the arguments that need no gradient."""
        self._held = held
        self._lock = threading.Lock()
        self._flight: Callable[[], Flight | None] = lambda: None
        self._pinned: list[Any] = []
        if self.device in CAPTURES:
            raise CaptureError("another graph is being captured")
        self._pinned = self._capture(call)

    def _capture(self, call: ModelCall) -> list[Any]:
        """Capture the call and its backward; return the buffers that are pinned for it."""
        originals = list(map(at_offset_0, call.tensors()))
        states = _RandomStates()
        capture = Capture(self.device)
        pinned: list[Any] = []
        try:
            capture.begin()
            try:
                captured = self._run(capture, call, originals)
            finally:
                pinned = capture.end()
                has_drawn = states.restore()
            if has_drawn:
                raise CaptureError("forward draws random numbers on the CPU")
            self._prepare(capture, captured)
        except BaseException as error:
            self.device.unpin(pinned)
            if isinstance(error, CaptureError) or not isinstance(error, Exception):
                raise
            reason = str(error).partition(REFUSED)[0] or type(error).__name__
            raise CaptureError(reason) from error
        return pinned

    def _run(
        self, capture: Capture, call: ModelCall, originals: list[OclTensor]
    ) -> _CapturedTensors:
        """Call the model and autograd while launches are captured."""
        versions = [(each, each._version) for each in (*originals, *self._held)]
        with torch.enable_grad(), _CpuReads():
            inputs: Any = [each.detach().requires_grad_(each.requires_grad) for each in originals]
            value = call.with_tensors(inputs).run()
        self._num_forward = len(capture.launches)
        self.changed = [each for each, version in versions if each._version != version]
        """Buffers that the forward changes in place."""
        if not {*map(id, self.changed)} <= {*map(id, self.buffers)}:
            raise CaptureError("forward changes its arguments or a parameter in place")
        try:
            self.returned = Returned(value)
        except Exception as error:  # (an object may raise anything while it is written)
            raise CaptureError(UNKNOWN_OBJECT) from error
        outputs = self.returned.take_tensors()
        self.needs_grad = [output.requires_grad for output in outputs]
        """Whether outputs need a gradient."""
        if not all(index < len(outputs) and self.needs_grad[index] for index in self.gradients):
            raise CaptureError("gradients are those of other outputs")
        incoming = {
            index: metadata.tensor_in(self.device.allocate(MIN_BLOCK_BYTES, MIN_BLOCK_BYTES))
            for index, metadata in self.gradients.items()
        }
        wanted = [each for each in (*inputs, *self.trained) if each.requires_grad]
        with in_autocast(None):  # (scripts leave autocast before their backward)
            gradients: Any = torch.autograd.grad(
                [outputs[index] for index in incoming], wanted, list(incoming.values()),
                allow_unused=True,
            )  # fmt: skip
        return _CapturedTensors(inputs, outputs, incoming, gradients)

    def _prepare(self, capture: Capture, captured: _CapturedTensors) -> None:
        """Find out which launches take which tensors, and make lists of them."""
        launches, draws = capture.launches, capture.draws()
        if len(launches) < MIN_LAUNCHES:
            raise CaptureError(FEW_LAUNCHES)
        if not all(draw.seeds and draw.offsets for draw in draws):
            raise CaptureError("a kernel computes with the position of its random numbers")
        uses = Uses(capture, self._num_forward)
        held = set(map(_key_of, self._held))
        given = set(map(_key_of, captured.inputs))
        incoming = {_key_of(each): index for index, each in captured.incoming.items()}
        if len(given) < len(captured.inputs) or not held.isdisjoint(given):
            raise CaptureError("arguments share memory")
        if not uses.buffers <= held | given | incoming.keys() | capture.born.keys():
            raise CaptureError("forward reads a tensor that is no parameter, buffer or attribute")
        spans = range(self._num_forward), range(self._num_forward, len(launches))
        self.forward, self.backward = (Part(self.device, launches, draws, span) for span in spans)
        self.inputs = [uses.slots(each.memory.buffer) for each in captured.inputs]
        """Arguments of launches that take those of the call."""
        self.read_again = {
            id(each) for each in self.trained if uses.slots(each.memory.buffer).backward
        }
        """Ids of the parameters that the backward reads."""
        self._incoming = {
            index: uses.slots(each.memory.buffer) for index, each in captured.incoming.items()
        }
        self.outputs, self._results = _results(capture, uses, captured.outputs, 0, {})
        if len(self.outputs) < len(captured.outputs):
            raise CaptureError("outputs share memory")
        self._new_gradients, results = _results(
            capture, uses, [each for each in captured.gradients if each is not None],
            self._num_forward, incoming,
        )  # fmt: skip
        supply = iter(results)
        self._gradient_results = [
            None if each is None else next(supply) for each in captured.gradients
        ]
        of_parameters = self._gradient_results[len(captured.gradients) - len(self.trained) :]
        owners = Counter(each.memory for each in results if each.is_new)
        self.are_kept = [
            each is not None and each.is_new and owners[each.memory] == 1
            and each.metadata.stride == parameter.metadata.stride
            and is_dense(parameter.metadata.size, parameter.metadata.stride)
            for parameter, each in zip(self.trained, of_parameters, strict=True)
        ]  # fmt: skip
        """Whether torch keeps gradients of parameters as they are: they lie as these do."""

    def begin(self) -> Flight | None:
        """Return the state of a new replay; None while the memory of another is needed."""
        with self._lock:
            if not self.is_idle:
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
        for slots, each in zip(self.inputs, inputs, strict=True):
            self.forward.bind(slots.forward, each.memory.buffer)
        memories = [self.device.allocate(new.size, new.used) for new in self.outputs]
        for new, memory in zip(self.outputs, memories, strict=True):
            self.forward.bind(new.slots.forward, memory.buffer)
        self.forward.run()
        return [each.metadata.tensor_in(memories[each.memory]) for each in self._results]

    def run_backward(
        self, inputs: Sequence[OclTensor | None], outputs: Sequence[OclTensor | None],
        gradients: Sequence[Any],
    ) -> list[OclTensor | None]:  # fmt: skip
        """Replay the backward; return the gradients of arguments and parameters.

        Args:
            inputs: Arguments of the call, or None where the backward does not read them.
            outputs: Outputs of the call, likewise.
            gradients: Gradients of the outputs.
        """
        part = self.backward
        for slots, tensor in (
            *zip(self.inputs, inputs, strict=True),
            *zip((new.slots for new in self.outputs), outputs, strict=True),
            *((slots, gradients[index]) for index, slots in self._incoming.items()),
        ):
            if tensor is not None:
                part.bind(slots.backward, tensor.memory.buffer)
        memories = [self.device.allocate(new.size, new.used) for new in self._new_gradients]
        for new, memory in zip(self._new_gradients, memories, strict=True):
            part.bind(new.slots.backward, memory.buffer)
        part.run()

        def tensor_of(result: ReturnedTensor) -> OclTensor:
            if result.is_new:
                return result.metadata.tensor_in(memories[result.memory])
            return result.metadata.view_of(gradients[result.memory])

        return [None if each is None else tensor_of(each) for each in self._gradient_results]

    def drop(self) -> None:
        """Return the memory to the allocator; the call cannot be replayed again."""
        pinned, self._pinned = self._pinned, []
        self.device.unpin(pinned)

    def __del__(self) -> None:
        if self.__dict__.get("_pinned"):
            self.drop()


class Flight:
    """A replayed forward whose backward may come."""

    is_over = False
    """Whether what the forward has left is no longer needed."""


def _results(
    capture: Capture, uses: Uses, tensors: Sequence[OclTensor], begin: int,
    incoming: Mapping[int, int],
) -> tuple[list[NewMemory], list[ReturnedTensor]]:  # fmt: skip
    """Return the memory of tensors that a part returns, and where each is in it.

    Args:
        capture: The capture.
        uses: The uses of its buffers.
        tensors: The tensors.
        begin: Number of the part's first launch.
        incoming: Indices of gradients of outputs by the key of their memory.
    """
    numbers: dict[int, int] = {}
    new: list[NewMemory] = []
    results = []
    for tensor in tensors:
        key, memory = _key_of(tensor), tensor.memory
        if key in incoming:
            results.append(ReturnedTensor(incoming[key], is_new=False, metadata=tensor.metadata))
            continue
        if capture.born.get(key, -1) < begin:
            raise CaptureError("a result is in the memory of an argument or of another result")
        if key not in numbers:
            numbers[key] = len(new)
            slots = uses.slots(memory.buffer, capture.born[key])
            new.append(NewMemory(memory.size, memory.used, slots))
        results.append(ReturnedTensor(numbers[key], is_new=True, metadata=tensor.metadata))
    return new, results


def _key_of(tensor: OclTensor) -> int:
    return id(tensor.memory.buffer)


def at_offset_0(tensor: OclTensor) -> OclTensor:
    """Return a tensor that begins where its memory does: itself if it does, else a copy."""
    if not tensor.metadata.offset:
        return tensor
    copy: Any = tensor.clone(memory_format=torch.preserve_format)
    return copy  # type: ignore[no-any-return]


def layout_of(tensor: OclTensor) -> TensorMeta | None:
    """Return the metadata of `at_offset_0` of a tensor; None if a copy has another layout."""
    meta = tensor.metadata
    if not meta.offset:
        return meta
    if not is_dense(meta.size, meta.stride):
        return None
    return interned_meta(meta.device, meta.size, meta.stride, 0, meta.dtype)


class _CpuReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuse operators that read a CPU tensor from outside of the call: its values may change."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._created: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; raise CaptureError if it reads such a tensor."""
        kwargs = kwargs or {}
        is_new = func is torch.ops.aten.lift_fresh.default  # (torch.tensor has created it)
        for tensor in self._cpu_tensors((args, kwargs)):
            if not is_new and id(tensor) not in self._created:
                raise CaptureError("forward reads a tensor of the CPU")
        result = func(*args, **kwargs)
        self._created.update((id(each), each) for each in self._cpu_tensors(result))
        return result

    @staticmethod
    def _cpu_tensors(values: Any) -> list[Tensor]:
        return [
            leaf
            for leaf in tree.tree_leaves(values)
            if isinstance(leaf, torch.Tensor) and leaf.is_cpu
        ]


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
