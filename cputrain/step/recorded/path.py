"""The calls that regions have made so far: a tree, whose paths end where `backward` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cputrain.step.recorded.arguments import Container, Layout, describe_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from torch import Tensor

    from cputrain.step.compiled_step import Compiled
    from cputrain.step.model_tensors import ModelTensors
    from cputrain.step.recorded.noise import Noise


class CallKey(NamedTuple):
    """A call of a model or of a function of torch: what is called, and its arguments."""

    function: Any
    """A function of torch, or the module."""

    model: ModelTensors | None
    """Tensors of the module; None for a function."""

    is_grad_enabled: bool
    args: Any
    kwargs: Any


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
        self.is_ready = False
        """Whether calls may be deferred that far: a path from here is compiled."""

    def follow(self, key: CallKey) -> Path:
        """Return the path with one more call."""
        path = self.children.get(key)
        if path is None:
            path = self.children[key] = Path(self, key, self.num_results)
        return path

    def set_result(self, value: Any, known: Callable[[Tensor], int | None]) -> bool:
        """Keep the description of what the call returned; return whether it is the usual one.

        Raises UnrecordableError.
        """
        result = describe_result(value, known)
        if self.result is None:
            self.result = result
            self.num_results = self.first_result + _num_layouts(result)
        return bool(self.result == result)

    def calls(self) -> list[Path]:
        """Return the paths from the first call to this one."""
        paths: list[Path] = []
        path: Path | None = self
        while path is not None and path.key is not None:
            paths.append(path)
            path = path.parent
        return paths[::-1]

    def be_ready(self) -> None:
        """Have calls deferred that far."""
        path: Path | None = self
        while path is not None:
            path.is_ready = True
            path = path.parent


class Ending:
    """`backward` at the end of a path: how often it was seen, and the function compiled for it."""

    def __init__(self) -> None:
        self.num_seen = 0
        self.num_failed = 0
        """Number of proofs that failed."""
        self.returned: set[int] = set()
        """Indices of results that the script still has when `backward` is called."""
        self.future: Future[Compiled] | None = None
        self.models: list[ModelTensors] = []
        self.weights: list[Tensor] = []
        """Parameters of models, and others, that get gradients."""
        self.tensors: list[Tensor] = []
        """Arguments of the compiled function, without those of the batch."""
        self.buffers: list[Tensor] = []
        self.order: Sequence[int] = ()
        """Indices of the results that it returns, behind the loss."""
        self.shared: set[int] = set()
        """Positions of gradients whose memory other results or arguments have, too."""
        self.run: Compiled | None = None
        """The compiled function, once it was proved."""


def _num_layouts(result: Any) -> int:
    if type(result) is Layout:
        return 1
    if type(result) is Container:
        return sum(map(_num_layouts, result.members))
    return 0
