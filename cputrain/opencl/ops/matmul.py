"""Matrix products.

On a device that is the CPU, torch's own product is many times as fast, and works in the same
memory: it is used there, unless fallbacks are forbidden.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.fallback import prefers_cpu
from cputrain.opencl.product import Product, TensorSlot
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.tiles import MAX_GRID_GROUPS, candidates, result_definitions, split_k
from cputrain.opencl.types import MAX_INT_INDEX, SCALARS, are_supported, computes_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.mm.default)
def mm(self: OclTensor, mat2: OclTensor) -> Any:
    """Multiply two matrices."""
    return NotImplemented if self.dim() != 2 else _multiply_if_supported(None, self, mat2, 0.0, 1.0)


@kernel(aten.bmm.default)
def bmm(self: OclTensor, mat2: OclTensor) -> Any:
    """Multiply two batches of matrices."""
    return NotImplemented if self.dim() != 3 else _multiply_if_supported(None, self, mat2, 0.0, 1.0)


@kernel(aten.addmm.default)
def addmm(
    self: OclTensor, mat1: OclTensor, mat2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Compute beta * self + alpha * (mat1 @ mat2)."""
    return (
        NotImplemented if mat1.dim() != 2 else _multiply_if_supported(self, mat1, mat2, beta, alpha)
    )


@kernel(aten.baddbmm.default)
def baddbmm(
    self: OclTensor, batch1: OclTensor, batch2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Compute beta * self + alpha * (batch1 @ batch2) for batches."""
    return (
        NotImplemented
        if batch1.dim() != 3
        else _multiply_if_supported(self, batch1, batch2, beta, alpha)
    )


def _multiply_if_supported(
    addend: OclTensor | None, left: OclTensor, right: OclTensor, beta: float, alpha: float
) -> Any:
    operands = [operand for operand in (addend, left, right) if operand is not None]
    if not all(isinstance(operand, OclTensor) for operand in operands):
        return NotImplemented
    device = left.memory.device
    if (
        prefers_cpu(device)
        or any(
            operand.memory.device is not device or operand.dtype is not left.dtype
            for operand in operands
        )
        or not left.dtype.is_floating_point
        or not are_supported(device, left.dtype)
        or left.dim() not in (2, 3)
        or right.dim() != left.dim()
        or left.size(-1) != right.size(-2)
        or max(*left.size()[-2:], *right.size()[-2:]) > MAX_INT_INDEX
        or (left.dim() == 3 and (left.size(0) != right.size(0) or left.size(0) > MAX_GRID_GROUPS))
        or not candidates(device, left.size(-2), right.size(-1), 1, left.dtype)
    ):
        return NotImplemented  # torch raises its own error, if there is one
    size = [*left.size()[:-1], right.size(-1)]
    try:
        addend_view: Any = None if addend is None or beta == 0 else torch.broadcast_to(addend, size)
    except RuntimeError:
        return NotImplemented
    out = empty(device.index, size, contiguous(size), left.dtype)
    if out.numel():
        multiply(left, right, out, addend_view, alpha, beta)
    return out


def multiply(
    left: OclTensor, right: OclTensor, out: OclTensor, addend: OclTensor | None = None,
    alpha: float = 1.0, beta: float = 0.0,
) -> None:  # fmt: skip
    """Write the product of two matrices or two batches to a contiguous `out`.

    Args:
        left: Left factor.
        right: Right factor.
        out: Contiguous tensor for alpha * (left @ right) + beta * addend.
        addend: Tensor of the size of `out` to add, if any.
        alpha: Factor of the product.
        beta: Factor of the addend.
    """
    plan = _plan_of(
        out.memory.device, out.dtype, left.size(), left.stride(), right.size(), right.stride(),
        None if addend is None else addend.stride(), alpha != 1,
    )  # fmt: skip
    plan.launch(left, right, out, addend, alpha, beta)


class _MatmulPlan:
    """Tile choice and kernel arguments for matrix products of one set of sizes and strides."""

    def __init__(
        self, device: Device, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...],
        right_size: tuple[int, ...], right_stride: tuple[int, ...],
        addend_stride: tuple[int, ...] | None, is_scaled: bool,
    ) -> None:  # fmt: skip
        self._index, self._dtype = device.index, dtype
        batch = size[0] if len(size) == 3 else 1
        rows, columns, depth = size[-2], right_size[-1], size[-1]
        self._num_parts, part_length = split_k(device, rows, columns, depth, batch)
        if addend_stride is not None or is_scaled or batch * self._num_parts > MAX_GRID_GROUPS:
            self._num_parts, part_length = 1, max(1, depth)
        a_by_k, b_by_k = stride[-1] == 1, right_stride[-2] == 1 and right_stride[-1] != 1
        needs_long = max(_extent(size, stride), _extent(right_size, right_stride)) > MAX_INT_INDEX
        definitions = (
            ("A_BY_K", int(a_by_k)), ("B_BY_K", int(b_by_k)),
            ("B_STRIDE", "1" if right_stride[-1] == 1 else "b_n"),
            ("HAS_D", int(addend_stride is not None)),
            ("DIVIDED", int(self._num_parts > 1)), ("I", "long" if needs_long else "int"),
            *result_definitions(dtype, self._num_parts),
        )  # fmt: skip
        pattern: list[Any] = [rows, columns, depth]
        for number, steps in enumerate((stride, right_stride, addend_stride or stride)):
            pattern += (
                TensorSlot(number),
                steps[-2],
                steps[-1],
                steps[0] if len(steps) == 3 else 0,
            )
        pattern.append(TensorSlot(3))
        self._split_arguments = self._num_parts, part_length
        self._product = Product(
            device, ("matrix",), dtype, definitions, TYPES[dtype],
            (rows, columns, depth, batch * self._num_parts), pattern,
        )  # fmt: skip

    def launch(
        self, left: OclTensor, right: OclTensor, out: OclTensor, addend: OclTensor | None,
        alpha: float, beta: float,
    ) -> None:  # fmt: skip
        """Enqueue the product of these matrices."""
        result, num_parts = out, self._num_parts
        if num_parts > 1:
            size, stride = (num_parts, out.numel()), (out.numel(), 1)
            result = empty(self._index, size, stride, computes_in(self._dtype))
        scalar_type = SCALARS[self._dtype]
        addend_or_left = left if addend is None else addend  # (the kernel needs a buffer)
        self._product.launch(
            (left, right, addend_or_left, result),
            (scalar_type(alpha), scalar_type(beta), *self._split_arguments),
        )
        if num_parts > 1:
            reduce("0", "A + X", "A", result, [0], out)


_plan_of = lru_cache(maxsize=1 << 12)(_MatmulPlan)


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the distance in elements from the first element to the last."""
    return sum((n - 1) * dim_stride for n, dim_stride in zip(size, stride, strict=True))


MATRIX_TYPES = (None, *[np.int64] * 4)
"""Argument types of a matrix: buffer, offset, two strides, stride of the batch."""

SPLIT_TYPES = (np.int32, np.int32)
"""Argument types of split-k: number of parts, and the length of each."""

TYPES = {
    dtype: (
        *[np.int32] * 3,
        *MATRIX_TYPES * 3,
        None,
        np.int64,
        SCALARS[dtype],
        SCALARS[dtype],
        *SPLIT_TYPES,
    )
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""Argument types of matrix.cl by dtype."""
