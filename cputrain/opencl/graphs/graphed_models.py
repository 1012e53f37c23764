"""Models on an OpenCL device: calls that were the same for some steps are replayed.

A root call of a model in training launches the same kernels in each step, forward and backward.
After some steps they are captured, and a call is one list of launches: the Python of torch's
dispatch, which takes longer than most kernels, is not run.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as tree

from cputrain.counting import counted
from cputrain.opencl.device import SHORTAGE_HOOKS
from cputrain.opencl.graphs.autocast_state import autocast_dtype
from cputrain.opencl.graphs.capture import CAPTURES
from cputrain.opencl.graphs.graphed_call import (
    FEW_LAUNCHES,
    CaptureError,
    GraphedCall,
    ModelCall,
    layout_of,
)
from cputrain.opencl.graphs.replayed import ReplayedCall
from cputrain.opencl.graphs.returned import UNKNOWN_OBJECT, Returned
from cputrain.opencl.tensor import OclTensor
from cputrain.runtime.effects import SITE_FOLDERS, effect_of
from cputrain.step.model_tensors import CompileError, ModelTensors
from cputrain.step.script_reach import functions_of
from cputrain.step.torch_state import torch_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType
    from typing import Any

    from cputrain.opencl.device import Device, DeviceMemory
    from cputrain.opencl.tensor import TensorMeta

NUM_SEEN = 3
"""How often a call and its backward are seen before they are captured."""

MAX_WAITING = 4
"""Number of calls whose backward is waited for; a script may call a model and not train it."""

MAX_STATES = 4
"""Number of states of a model, such as its values in training and in evaluation."""

MAX_GRAPHS = 8
"""Number of calls of a model that are captured: each keeps memory."""

MEMORY_SHARE = 8
"""A second call is captured where less than one part in so many of the memory is reserved."""

MAX_KEYS = 64
"""Number of different calls of a model, after which it is left alone."""

STATE_CHANGES = frozenset({
    "STORE_ATTR", "DELETE_ATTR", "update", "setattr", "delattr", "setdefault", "pop", "next",
    "register_buffer", "debug", "YIELD_VALUE",
})  # fmt: skip
"""What functions of installed packages may do, such as fill a container that they return.

It counts if a value has changed by it that a forward depends on.
"""

ATTRIBUTE = "graphs"
"""Name of the attribute of a parameter that holds what is known of models."""

PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None), torch.dtype, torch.device})
"""Types of arguments that are part of a key as they are."""


class GraphedModels:
    """All models of this process, whose root calls go through `call_model`."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[_KnownModel] = weakref.WeakSet()
        self._reason = ""
        self.num_replayed = 0
        """Number of calls that were replayed."""
        SHORTAGE_HOOKS.append(self._give_back)

    def call_model(
        self, call: Callable[..., Any], model: nn.Module, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a model, or replay the call."""
        first: Any = next(model.parameters(), None)
        if not isinstance(first, OclTensor) or CAPTURES or not torch.is_grad_enabled():
            return call(model, *args, **kwargs)
        known = self._known_of(model, first)
        if known.thread != threading.get_ident():
            known.leave("several threads call the model")
        if known.reason:
            if known.reason != FEW_LAUNCHES and not known.is_on_cpu:
                self._reason = self._reason or known.reason
            return call(model, *args, **kwargs)
        model_call = ModelCall(call, model, args, kwargs)
        replay = known.replay_of(model_call)
        if replay is not None:
            self.num_replayed += 1
            return replay.run()
        return known.observe(model_call)

    def _known_of(self, model: nn.Module, first: OclTensor) -> _KnownModel:
        """Return what is known of a model.

        Its first parameter holds it, as it may hold the model: both are collected together.
        """
        by_model: dict[int, _KnownModel] = first.__dict__.setdefault(ATTRIBUTE, {})
        known = by_model.get(id(model))
        if known is None or known.reference() is not model:
            known = by_model[id(model)] = _KnownModel(model)
            self._known.add(known)
        return known

    def _give_back(self, device: Device) -> bool:
        """Drop the graphs on a device that lacks memory; return whether there were any."""
        dropped = [known.drop(device) for known in list(self._known)]
        return any(dropped)

    def describe(self) -> str:
        """Return how many calls were replayed, or why no call of a model on a GPU was."""
        if not self.num_replayed:
            return f"calls on ocl not replayed: {self._reason}" if self._reason else ""
        return f"replayed {counted(self.num_replayed, 'forward pass', 'forward passes')} on ocl"

    def undo(self) -> None:
        """Do nothing: the device stays registered."""


class _SeenCall:
    """A call that was seen: how often, and of which outputs `backward` gave gradients."""

    def __init__(self) -> None:
        self.num_same = 0
        self.gradients: dict[int, TensorMeta] = {}
        self._waiting: deque[_SeenGradients] = deque(maxlen=MAX_WAITING)

    def new_gradients(self) -> _SeenGradients:
        """Count the calls whose backward is over; return what notes the gradients of a new one."""
        while self._waiting and self._waiting[0].tasks:
            last = self._waiting.popleft()
            is_same = last.is_plain and last.by_output == self.gradients
            self.num_same = self.num_same + 1 if is_same else int(last.is_plain)
            self.gradients = last.by_output if last.is_plain else {}
        self._waiting.append(_SeenGradients())
        return self._waiting[-1]


class _SeenGradients:
    """What the backward of one call has given: metadata of gradients by the output's index."""

    def __init__(self) -> None:
        self.by_output: dict[int, Any] = {}
        self.tasks: set[int] = set()

    def hook_of(self, index: int) -> Callable[[Any], None]:
        """Return a hook of an output."""

        def note(gradient: Any) -> None:
            is_new = index not in self.by_output and not torch.is_grad_enabled()
            self.by_output[index] = getattr(gradient, "metadata", None) if is_new else None
            self.tasks.add(torch._C._current_graph_task_id())

        return note

    @property
    def is_plain(self) -> bool:
        """Return whether there was one backward, for gradients on the device."""
        return len(self.tasks) == 1 and None not in self.by_output.values()


class _ModelState(NamedTuple):
    """Tensors and values of a model."""

    tensors: ModelTensors
    memory: OclMemory
    trained: list[Any]

    def is_current(self) -> bool:
        """Return whether all are as they were."""
        return self.memory.is_current() and self.tensors.is_current()


class _KnownModel:
    """What is known of a model, and its captured calls."""

    def __init__(self, model: nn.Module) -> None:
        self.reference = weakref.ref(model)
        self.thread = threading.get_ident()
        """The thread that calls it: torch's nodes are made under a lock of each parameter."""
        self.reason = ""
        """Why its calls are not replayed; "" if they may be."""
        self._states: list[_ModelState] = []
        self._calls: dict[Any, _SeenCall | GraphedCall] = {}
        self._num_graphs = 0
        devices = {
            each.memory.device if isinstance(each, OclTensor) else None
            for each in model.parameters()
        }
        self.is_on_cpu = any(device is not None and device.is_cpu for device in devices)
        """Whether its device is the CPU, on which many operators are torch's own."""
        if len(devices) != 1 or None in devices:
            self.reason = "not all parameters are on one OpenCL device"

    def replay_of(self, call: ModelCall) -> ReplayedCall | None:
        """Return the replay of a call; None if there is none."""
        state = self._current_state()
        if state is None:
            return None
        key = _key(self._states.index(state), call)
        graphed = None if key is None else self._calls.get(key)
        if not isinstance(graphed, GraphedCall):
            if graphed is None or graphed.num_same < NUM_SEEN:
                return None
            graphed = self._capture(key, graphed, state, call)
            if graphed is None:
                return None
        flight = graphed.begin()
        return None if flight is None else ReplayedCall(graphed, flight, call)

    def observe(self, call: ModelCall) -> Any:
        """Call the model, and note for which outputs its backward is called."""
        state = self._current_state() or self._new_state(call.model)
        returned = call.run()
        if state is not None and not state.is_current():
            state = None  # the forward has changed it
        key = None if state is None else _key(self._states.index(state), call)
        if key is None:
            return returned
        seen = self._calls.get(key)
        if seen is None:
            if len(self._calls) == MAX_KEYS:
                self.reason = "calls differ from step to step"
                return returned
            seen = self._calls[key] = _SeenCall()
        if isinstance(seen, _SeenCall):
            gradients = seen.new_gradients()
            try:
                outputs = Returned(returned).take_tensors()
            except Exception:  # (an object may raise anything while it is written)
                self.leave(UNKNOWN_OBJECT)
                return returned
            for index, output in enumerate(outputs):
                if output.requires_grad:
                    register: Any = output.register_hook
                    register(gradients.hook_of(index))
        return returned

    def _current_state(self) -> _ModelState | None:
        for state in self._states:
            if state.is_current():
                return state
        return None

    def _new_state(self, model: nn.Module) -> _ModelState | None:
        if len(self._states) == MAX_STATES:
            change = self._states[-1].tensors.values.difference() or "a value of the model"
            self.leave(f"{change} changes from step to step")
            return None
        try:
            tensors = ModelTensors(model, has_attributes=False, memory=OclMemory)
            effect = next(filter(None, map(_effect_of, functions_of(model.modules()))), "")
            if effect:
                raise CompileError(effect)
            _check(model)
        except CompileError as error:
            self.reason = str(error)
            return None
        trained = [each for each in tensors.parameters.values() if each.requires_grad]
        state = _ModelState(tensors, OclMemory(attributes_of(model)), trained)
        self._states.append(state)
        return state

    def _capture(
        self, key: Any, seen: _SeenCall, state: _ModelState, call: ModelCall
    ) -> GraphedCall | None:
        device: Device = state.trained[0].memory.device
        share = device.stats().reserved * MEMORY_SHARE
        if self._num_graphs and (self._num_graphs == MAX_GRAPHS or share > device.memory_bytes):
            return None
        held: Sequence[Any] = [*state.tensors.tensors, *state.memory.tensors]
        try:
            graphed = GraphedCall(call, state.trained, held, seen.gradients)
        except CaptureError as error:
            self.leave(str(error))
            return None
        self._num_graphs += 1
        self._calls[key] = graphed
        return graphed

    def leave(self, reason: str) -> None:
        """Have all calls made as they are written from now on."""
        self.reason = self.reason or reason
        self.drop()

    def drop(self, device: Device | None = None) -> bool:
        """Drop the graphs that are not in use; return whether there were any."""
        graphs = [
            each
            for each in self._calls.values()
            if isinstance(each, GraphedCall)
            and each.device in (device, each.device)
            and each.is_idle
        ]
        for each in graphs:
            each.drop()
        if graphs:
            self.reason = self.reason or "the device has no memory left for graphs"
            self._calls = {key: each for key, each in self._calls.items() if each not in graphs}
        return bool(graphs)


class OclMemory:
    """The memory of tensors on a device: a script may give a tensor other memory.

    Raises CompileError.

    Args:
        tensors: The tensors, or pairs of a namespace and a name that hold them.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._places = [each for each in tensors if isinstance(each, tuple)]
        self.tensors: list[OclTensor] = [
            each[0][each[1]] if isinstance(each, tuple) else each for each in tensors
        ]
        """The tensors."""
        if not all(isinstance(each, OclTensor) for each in self.tensors):
            raise CompileError("not all tensors are on an OpenCL device")
        self._memories: list[DeviceMemory] = [each.memory for each in self.tensors]
        self._metadata = [each.metadata for each in self.tensors]
        if len(set(map(id, self._memories))) < len(self._memories):
            raise CompileError("tensors of the model share memory")

    def is_current(self) -> bool:
        """Return whether each tensor is where it was."""
        return all(
            space.get(name) is tensor
            for (space, name), tensor in zip(self._places, self.tensors, strict=False)
        ) and all(
            getattr(tensor, "memory", None) is memory and tensor.metadata is metadata
            for tensor, memory, metadata in zip(
                self.tensors, self._memories, self._metadata, strict=True
            )
        )


def attributes_of(model: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return the places of tensors that are attributes of modules, and no parameters or buffers."""
    return [
        (vars(module), name)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, OclTensor)
    ]


def _effect_of(function: FunctionType) -> str:
    """Return what a function may do beside returning a value; "" if nothing."""
    is_installed = function.__code__.co_filename.startswith(SITE_FOLDERS)
    return effect_of(function, STATE_CHANGES if is_installed else frozenset())


def _check(model: nn.Module) -> None:
    if any(
        isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None
        for module in model.modules()
    ):
        raise CompileError("the model is compiled already")


def _key(state: int, call: ModelCall) -> Any:
    """Return what a captured call assumes of arguments and of torch; None if there is no key."""
    modes = torch_modes()
    if modes is None:
        return None
    leaves, structure = tree.tree_flatten((call.args, call.kwargs))
    parts: list[Any] = [state, modes, autocast_dtype(), structure]
    for leaf in leaves:
        if type(leaf) is OclTensor:
            layout = layout_of(leaf)
            if layout is None:
                return None
            parts.append((layout, leaf.requires_grad))
        elif type(leaf) in PLAIN_TYPES:
            parts.append((type(leaf), leaf or str(leaf)))  # (tell -0.0 from 0.0)
        else:
            return None
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key
