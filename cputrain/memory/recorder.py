"""Record a run of `cputrain plan --memory`: the memory of its first steps, by what takes it.

After the steps, one forward is run with half a batch and with a whole one, to count what autograd
saves in each. Then the process is ended, so that nothing of the script depends on it.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map

from cputrain.memory.forward import Forward, Planned
from cputrain.memory.module_call import batch_size
from cputrain.memory.process_memory import anonymous_bytes, peak_anonymous_bytes
from cputrain.memory.saved_tensors import SavedBytes, storage_of
from cputrain.memory.schedule import ForwardTrace
from cputrain.memory.tree import TreeMemorySampler
from cputrain.runtime.optimizer_states import EightBitTensor
from cputrain.runtime.patching import Patch, never_compile
from cputrain.runtime.root_forward import root_forward_of, within_call
from cputrain.runtime.trial import end_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

KEEP_ALL = Planned(ForwardTrace(saved=(), sizes={}, calls=()), (), ())
"""Has a forward keep all that it saves."""


class MemoryRecorder:
    """Records the peak of some steps and its parts, and writes them when the run ends.

    Args:
        fd: File descriptor that the JSON document is written to.
        memory: Number of steps.
    """

    def __init__(self, *, fd: int, memory: int) -> None:
        self._fd, self._num_steps = fd, memory
        self._pid = os.getpid()
        self._sampler = TreeMemorySampler()
        self._workers_bytes = 0
        self._parts = {"python": anonymous_bytes(), "data": 0}
        self._counts: dict[int, int] = {}
        """Steps of each optimizer."""
        self._gradients: dict[int, int] = {}
        self._states: dict[int, int] = {}
        self._current: Forward | None = None
        self._activations: list[dict[str, int]] = []
        """Batch and saved bytes of each forward at the end."""
        self._layers: list[tuple[str, int]] = []
        original: Any = torch.nn.Module._call_impl

        def _call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._current is None:
                return original(module, *args, **kwargs)
            return self._current.call_module(original, module, *args, **kwargs)

        Patch(torch.nn.Module, "_call_impl", _call_impl)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        never_compile(MemoryRecorder._before_step, MemoryRecorder._after_step)
        root_forward_of(torch).add(self._call_model)
        atexit.register(self._write, "ended")

    def _call_model(self, call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._counts and not self._parts["data"]:
            existing = [*model.parameters(), *model.buffers()]
            self._parts["parameters"] = _bytes_of(existing)
            present = anonymous_bytes() - self._parts["python"] - self._parts["parameters"]
            self._parts["data"] = max(0, present)
        is_measured = self._counts and min(self._counts.values()) >= self._num_steps
        if is_measured and torch.is_grad_enabled():
            self._count_activations(call, model, args, kwargs)
        return call(model, *args, **kwargs)

    def _count_activations(
        self, call: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run the model's forward with half a batch and a whole one; end the process."""
        peak_bytes = peak_anonymous_bytes()
        batch = batch_size(args, kwargs)
        for size in sorted({max(1, batch // 2), batch}):
            part_args, part_kwargs = _narrowed((args, kwargs), batch, size)
            self._current = forward = Forward(model, SavedBytes(), KEEP_ALL, 0, [])
            try:
                with within_call():
                    forward.run(call, model, *part_args, **part_kwargs)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                continue  # the model takes batches of one size only
            finally:
                self._current = None
            trace = forward.trace()
            self._activations.append({"batch": size, "bytes": trace.saved_bytes})
            self._layers = forward.saved_by_layer()
        self._write("enough", peak_bytes)
        end_process()

    def _before_step(self, optimizer: Any, *_: object) -> None:
        parameters = _parameters_of(optimizer)
        self._gradients[id(optimizer)] = _bytes_of(
            each.grad for each in parameters if each.grad is not None
        )
        for sample in self._sampler.sample([self._pid]).values():
            self._workers_bytes = max(self._workers_bytes, sample.current_bytes)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        tensors = [
            tensor
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for value in state.values()
            for tensor in (value.moments if isinstance(value, EightBitTensor) else (value,))
            if isinstance(tensor, torch.Tensor)
        ]
        self._states[id(optimizer)] = _bytes_of(tensors)

    def _write(self, end: str, peak_bytes: int | None = None) -> None:
        if os.getpid() != self._pid or not self._counts:
            return
        atexit.unregister(self._write)
        peak_bytes = peak_anonymous_bytes() if peak_bytes is None else peak_bytes
        saved_bytes = self._activations[-1]["bytes"] if self._activations else 0
        parts = {
            **self._parts,
            "gradients": sum(self._gradients.values()),
            "optimizer": sum(self._states.values()),
            "activations": saved_bytes,
            "workers": self._workers_bytes,
        }
        known_bytes = sum(parts.values()) - parts["workers"]
        document = {
            "end": end,
            "peak_bytes": peak_bytes + self._workers_bytes,
            "parts": {**parts, "temporary": max(0, peak_bytes - known_bytes)},
            "activations": self._activations,
            "layers": self._layers,
        }
        os.write(self._fd, json.dumps(document).encode())


def _parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of dense tensors' storages, each counted once."""
    storages = [storage for storage in map(storage_of, tensors) if storage is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _narrowed(arguments: Any, batch: int, size: int) -> Any:
    """Return arguments whose tensors have the first `size` samples of a batch."""

    def narrow(leaf: Any) -> Any:
        is_batch = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.size(0) == batch
        return leaf[:size] if is_batch and size < batch else leaf

    return tree_map(narrow, arguments)
