"""Random numbers of recorded calls: drawn where the script calls, and given to what is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cputrain.step.model_tensors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

aten = torch.ops.aten

FILLS = (aten.bernoulli_.float, aten.uniform_.default, aten.normal_.default)
"""Operators that fill a tensor with random numbers that do not depend on it."""

LIKE = (aten.rand_like.default, aten.randn_like.default)
"""Operators that return random numbers in the layout of their argument."""


class Noise(NamedTuple):
    """Random numbers of one operator call."""

    operator: Any
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    args: tuple[Any, ...]

    def memory(self) -> Tensor:
        """Return a tensor for the numbers."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu")

    def draw(self) -> Tensor:
        """Draw the numbers from torch's generator."""
        numbers: Tensor = self.operator(self.memory(), *self.args)
        return numbers


class NoiseMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists what operators draw, or has them use numbers that were drawn before.

    Args:
        numbers: What they use; None to list what they draw.
    """

    def __init__(self, numbers: Iterator[Tensor] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = numbers
        self.drawn: list[Noise] = []
        """What was drawn."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator, or use what was drawn for it."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func not in FILLS and func not in LIKE:
            raise CompileError(f"{func} draws random numbers")
        if kwargs.get("generator") is not None or (func in LIKE and kwargs.get("dtype")):
            raise CompileError(f"{func} draws random numbers with options")
        if self._numbers is None:
            tensor = args[0]
            noise = Noise(func, tensor.shape, tensor.stride(), tensor.dtype, args[1:])
            self.drawn.append(noise)
            return func(*args, **kwargs)
        numbers = next(self._numbers)
        return args[0].copy_(numbers) if func in FILLS else numbers.clone()
