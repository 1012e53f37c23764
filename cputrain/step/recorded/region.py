"""Calls of models and of functions of torch from the first one until `backward`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cputrain.step.recorded.arguments import Layout, make_result
from cputrain.step.recorded.deferred import make_deferred, real_of, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from cputrain.step.recorded.deferred import DeferredTensor
    from cputrain.step.recorded.path import Ending, Path


class ReadValue(NamedTuple):
    """A result of a region that the script read."""

    tensor: Tensor
    num_batch: int
    """Number of tensors of the batch among the arguments until then."""


class Region:
    """Calls whose results a script has, and what became of them.

    Args:
        path: The path without calls.
        modes: Modes of torch that hold for all calls.
        compute: Makes the deferred calls of a region.
        on_lost: Called when the script has none of the results any more.
    """

    def __init__(
        self,
        path: Path,
        modes: tuple[Any, ...],
        compute: Callable[[Region], None],
        on_lost: Callable[[Region], None],
    ) -> None:
        self._compute, self._on_lost = compute, on_lost
        self._num_alive = 0
        self.modes = modes
        """Modes of torch in which the calls are made."""
        self.path = path
        """The calls so far."""
        self.batch: list[Tensor] = []
        """Tensors of the script among the arguments."""
        self.versions: list[tuple[Tensor, int]] = []
        """Parameters and tensors of the script, with their versions when they were used."""
        self.numbers: list[Tensor] = []
        """Random numbers that were drawn for deferred calls."""
        self.random_states: list[Tensor] = []
        """State of torch's generator before each call that draws."""
        self.weights: dict[int, Tensor] = {}
        """Parameters among the arguments of functions, by their id."""
        self.model_calls: list[Callable[..., Any]] = []
        """What runs the model of each deferred call of one."""
        self.is_pending = path.is_ready
        """Whether nothing has been computed."""
        self.ran: Ending | None = None
        """The function that was run because a result was read."""
        self.gradients: list[Tensor] = []
        """What it returned for the weights."""
        self.buffers_before: dict[int, Tensor] = {}
        """Copies of models' buffers from before the calls, by their id."""
        self.served: dict[int, Path] = {}
        """Results whose numbers are there while calls are pending, and the calls before them."""
        self.read_values: dict[tuple[Path, int], ReadValue] = {}
        """Results that the script read, by the calls before and their index."""
        self.reason = ""
        """Why the region cannot be compiled; "" if it can."""
        self.start = 0.0
        self._tensors: list[weakref.ref[DeferredTensor]] = []

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Remember that tensors are used as they are now."""
        self.versions += [(tensor, tensor._version) for tensor in tensors]

    def defer(self, path: Path) -> Any:
        """Return what the last call of a path returns, without its numbers."""
        self.path = path
        if path.noise:
            self.random_states.append(torch.get_rng_state())
            self.numbers += [noise.draw() for noise in path.noise]
        result = path.result
        if type(result) is Layout:  # it nearly always is
            return self._make(result)
        return make_result(result, self._make, self.get)

    def _make(self, layout: Layout) -> Tensor:
        tensors = self._tensors
        shape, stride, dtype, grad_name = layout
        tensor = make_deferred(self, len(tensors), shape, stride, dtype, grad_name)
        self._hold(tensor)
        return tensor

    def _hold(self, tensor: DeferredTensor) -> None:
        """Add a result, as long as the script has it."""
        self._num_alive += 1
        self._tensors.append(weakref.ref(tensor, self._lose))

    def _lose(self, _: weakref.ref[DeferredTensor]) -> None:
        self._num_alive -= 1
        if not self._num_alive:
            self._on_lost(self)

    def observe(self, path: Path, tensors: Iterator[Tensor]) -> Any:
        """Return what the last call of a path has returned.

        Args:
            path: The path.
            tensors: The new ones among what it returned.
        """
        self.path = path

        def make(_: Layout) -> Tensor:
            tensor = wrap(self, len(self._tensors), next(tensors))
            self._hold(tensor)
            return tensor

        return make_result(path.result, make, self.get)

    def note_read(self, tensor: DeferredTensor) -> None:
        """Remember that the script reads a result, which has been computed."""
        value = ReadValue(real_of(tensor).detach().clone(), len(self.batch))
        self.read_values[self.path, tensor.position] = value

    def early_reads(self) -> list[tuple[Path, int]]:
        """Return which results were read before the last call."""
        return [key for key in self.read_values if key[0] is not self.path]

    def returned(self) -> set[int]:
        """Return the indices of results that the script has, or has read since the last call."""
        read = {index for path, index in self.read_values if path is self.path}
        return read | {tensor.position for tensor in self.alive()}

    def compute(self) -> None:
        """Make the deferred calls."""
        self._compute(self)

    def alive(self) -> list[DeferredTensor]:
        """Return the tensors that the script has."""
        tensors = [reference() for reference in self._tensors]
        return [tensor for tensor in tensors if tensor is not None and tensor.region is self]

    def kept(self) -> list[DeferredTensor]:
        """Return the tensors that the script has, also those that have been filled."""
        tensors = [reference() for reference in self._tensors]
        return [tensor for tensor in tensors if tensor is not None]

    def get(self, index: int) -> DeferredTensor | None:
        """Return a result of a call; None if the script has not kept it."""
        return self._tensors[index]()

    def index_of(self, real: Tensor) -> int | None:
        """Return the index of a computed tensor among the results; None if it is none of them."""
        for tensor in self.alive():
            if tensor.eager is real:
                return tensor.position
        return None

    def close(self) -> None:
        """Let go of everything; its tensors are as the script would have them."""
        for tensor in self.alive():
            tensor.region = None
        self.batch, self.weights, self.model_calls = [], {}, []
        self.numbers, self.random_states, self.versions = [], [], []
        self.gradients, self.buffers_before, self.read_values = [], {}, {}
        self._tensors = []
