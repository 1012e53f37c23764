"""Compute transformers' tanh GELU in chunks, and keep nothing but its input for backward.

As it is written, in eight operators, each reads and writes a tensor of its size, and four of these
are kept for backward. The same operators on a chunk find it in the caches of the cores, and
backward computes the hyperbolic tangent of a chunk again. Backward has autograd's operators in
autograd's order as well: Adam makes full steps of gradients that are rounding alone, as those of
attention's key biases are, so that each bit counts. Torch's fused operator is not used, as
its results are further from those in float64 than the composed function's.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch.autograd import Function

from cputrain.runtime.patching import Patch
from cputrain.runtime.plain_tensors import PlainTensors
from cputrain.runtime.saved_tensor_hooks import has_hooks_of_the_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from torch import Tensor

MODULE = "transformers.activations"
"""The module that has the composed function."""

FACTOR, CUBIC = math.sqrt(2.0 / math.pi), 0.044715
"""Constants of the approximation: 0.5 x (1 + tanh(FACTOR (x + CUBIC x³)))."""

CHUNK_ELEMENTS = 1 << 17
"""Elements of a chunk, for each thread: 512 KiB, and as much for each buffer."""


class _Gelu(Function):
    """GELU by the operators of the composed function, in chunks."""

    @staticmethod
    def forward(ctx: Any, data: Tensor) -> Tensor:
        ctx.save_for_backward(data)
        ctx.set_materialize_grads(False)
        output = torch.empty_like(data)
        for part, result in _chunks(data, output):
            _write_tangent(part, result)
            result.add_(1.0).mul_(0.5 * part)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        (data,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # by create_graph
            output = 0.5 * data * (1.0 + torch.tanh(FACTOR * (data + CUBIC * torch.pow(data, 3.0))))
            higher: Tensor = torch.autograd.grad(output, data, grad, create_graph=True)[0]
            return higher
        data_grad = torch.empty_like(data)
        for part, result, above in _chunks(data, data_grad, grad.contiguous()):
            tangent = torch.empty_like(part)
            _write_tangent(part, tangent)
            inner = torch.ops.aten.tanh_backward(above * (0.5 * part), tangent).mul_(FACTOR)
            torch.pow(part, 2.0, out=result)
            result.mul_(3.0).mul_(inner * CUBIC).add_(inner)
            result += tangent.add_(1.0).mul_(above).mul_(0.5)
        return data_grad


_Node: Any = _Gelu._backward_cls
_Node.__name__ = "MulBackward0"  # as an output is printed


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield chunks of contiguous tensors of one shape."""
    size = CHUNK_ELEMENTS * torch.get_num_threads()
    return zip(*(torch.split(tensor.view(-1), size) for tensor in tensors), strict=True)


def _write_tangent(data: Tensor, result: Tensor) -> None:
    """Write tanh(FACTOR (x + CUBIC x³))."""
    torch.pow(data, 3.0, out=result)
    result.mul_(CUBIC).add_(data).mul_(FACTOR).tanh_()


class ChunkedGelus:
    """The patch of transformers' activation, and the number of calls that it computed."""

    def __init__(self) -> None:
        self._tensors = PlainTensors(torch)
        self._patches: list[Patch] = []
        self.num_computed = 0

    def patch(self, activations: ModuleType) -> None:
        """Replace the forward of the composed function, if this version of transformers has it."""
        composed = getattr(activations, "NewGELUActivation", None)
        if composed is None:
            return
        original = composed.forward

        @wraps(original)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and self._is_plain(args[0]):
                return self._compute(args[0])
            return original(module, *args, **kwargs)

        self._patches.append(Patch(composed, "forward", forward))

    def _is_plain(self, data: Any) -> bool:
        """Return whether chunks have the same effects as the composed function."""
        return (
            not torch.compiler.is_compiling()
            and self._tensors.is_eager()
            and self._tensors.have_plain_keys([data])
            and data.dtype in {torch.float32, torch.float64}
            and data.is_contiguous()
            and not (torch.is_grad_enabled() and data.requires_grad and has_hooks_of_the_script())
        )

    def _compute(self, data: Tensor) -> Tensor:
        self.num_computed += 1
        apply: Callable[[Tensor], Tensor] = _Gelu.apply
        return apply(data)

    def undo(self) -> None:
        for patch in self._patches:
            patch.undo()
