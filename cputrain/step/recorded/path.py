"""The calls that regions have made so far: a tree, whose paths end where `backward` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain.step.recorded.arguments import Container, Layout, describe_result
from cputrain.step.recorded.matching import match_members, match_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from torch import Tensor

    from cputrain.step.compiled_step import Compiled
    from cputrain.step.model_tensors import ModelTensors
    from cputrain.step.recorded.deferred import DeferredTensor
    from cputrain.step.recorded.noise import Noise
    from cputrain.step.recorded.region import Region


class CallKey(NamedTuple):
    """A call of a model or of a function of torch: what is called, and its arguments."""

    function: Any
    """A function of torch, or a weak reference to the module."""

    model: ModelTensors | None
    """Tensors of the module; None for a function."""

    is_grad_enabled: bool
    args: Container
    kwargs: Container


class Path:
    """A sequence of calls, and the calls that have followed it.

    Args:
        parent: The sequence without the last call; None for no calls.
        key: The last call.
        num_results: Number of tensors that calls before it returned.
    """

    def __init__(
        self, parent: Path | None = None, key: CallKey | None = None, num_results: int = 0
    ) -> None:
        self.parent, self.key = parent, key
        if key is not None:
            self._match_args = match_members(key.args.members)
            self._match_kwargs = match_named(key.kwargs.keys, key.kwargs.members)
        self.num_calls: int = 0 if parent is None else parent.num_calls + 1
        """Number of calls."""
        self.likely: Path | None = None
        """The path that was deferred last after this one."""
        self.first_result = num_results
        """Index of the first tensor that the last call returns."""
        self.num_results = num_results
        """Number of tensors that all calls return."""
        self.result: Any = None
        """Description of what the last call returns."""
        self.noise: list[Noise] = []
        """What the last call draws, once it was traced."""
        self.children: dict[CallKey, Path] = {}
        self.endings: dict[int, Ending] = {}
        """What is known of `backward` here, by the index of the loss."""
        self.readings: dict[int, Reading] = {}
        """What is known of results that are read here, by their index."""
        self.is_ready = False
        """Whether calls may be deferred that far: a path from here is compiled."""

    def follow(self, key: CallKey) -> Path:
        """Return the path with one more call."""
        path = self.children.get(key)
        if path is None:
            path = self.children[key] = Path(self, key, self.num_results)
        return path

    def matches(
        self, region: Region, function: Any, model: ModelTensors | None, args: Any, kwargs: Any
    ) -> bool:
        """Return whether a call is the last one of this path; add its tensors to the region if so.

        Some arguments that are equal, such as a zero, are found only by their description.
        """
        key = self.key
        if (
            key is None
            or key.function != function
            or key.model is not model
            or key.is_grad_enabled is not torch.is_grad_enabled()
        ):
            return False
        size = len(region.batch)
        if self._match_args(args, region) and self._match_kwargs(kwargs, region):
            return True
        del region.batch[size:]
        return False

    def set_result(self, value: Any, known: Callable[[Tensor], int | None]) -> bool:
        """Keep the description of what the call returned; return whether it is the usual one.

        Raises UnrecordableError.
        """
        result = describe_result(value, known)
        if self.result is None:
            self.result = result
            self.num_results = self.first_result + _num_layouts(result)
        return bool(self.result == result)

    def reading(self, index: int) -> Reading:
        """Return what is known of a result that is read here."""
        reading = self.readings.get(index)
        if reading is None:
            reading = self.readings[index] = Reading()
        return reading

    def calls(self) -> list[Path]:
        """Return the paths from the first call to this one."""
        paths: list[Path] = []
        path: Path | None = self
        while path is not None and path.key is not None:
            paths.append(path)
            path = path.parent
        return paths[::-1]

    def call_keys(self) -> list[CallKey]:
        """Return the calls."""
        return [path.key for path in self.calls() if path.key is not None]

    def forget(self, is_kept: Callable[[CallKey, Path], bool]) -> None:
        """Remove all calls but those that are kept, and what follows them."""
        kept = {key: path for key, path in self.children.items() if is_kept(key, path)}
        if self.likely is not None and self.likely not in kept.values():
            self.likely = None
        self.children = kept
        for path in kept.values():
            path.forget(is_kept)

    def be_ready(self) -> None:
        """Have calls deferred that far."""
        path: Path | None = self
        while path is not None:
            path.is_ready = True
            path = path.parent


class RecordedFunction:
    """A function compiled for the calls of a path, and how often these were seen before."""

    def __init__(self) -> None:
        self.num_seen = 0
        self.num_failed = 0
        """Number of proofs that failed."""
        self.future: Future[Compiled] | None = None
        self.weights: list[Tensor] = []
        """Parameters of models, and others."""
        self.buffers: list[Tensor] = []
        """Buffers of models."""
        self.attributes: list[Tensor] = []
        """Other tensors that are attributes."""
        self.tensors: list[Tensor] = []
        """Arguments of the compiled function, without those of the batch: all of these."""
        self.run: Compiled | None = None
        """The compiled function, once it was proved."""


class Ending(RecordedFunction):
    """`backward` at the end of a path: a function of its results and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: set[int] = set()
        """Indices of results that the script still has when `backward` is called."""
        self.order: Sequence[int] = ()
        """Indices of the results that it returns, behind the loss."""
        self.shared: set[int] = set()
        """Positions of gradients whose memory other results or arguments have, too."""
        self.trained: list[Tensor] = []
        """Weights that get gradients."""
        self.unused: set[int] = set()
        """Indices of results of whose graph `backward` leaves something, such as hidden states."""
        self.is_graph_needed = False
        """Whether the script has used such a result after `backward`, otherwise than detached."""

    def keep_unused(self, tensors: Iterable[DeferredTensor]) -> None:
        """Have results whose graph `backward` has left unused say when the script uses it."""
        for tensor in tensors:
            self.unused.add(tensor.position)
            tensor.ending = self


class Reading(RecordedFunction):
    """A result that the script reads before the last call: a function of its numbers."""


def _num_layouts(result: Any) -> int:
    if type(result) is Layout:
        return 1
    if type(result) is Container:
        return sum(map(_num_layouts, result.members))
    return 0
