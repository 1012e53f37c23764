"""Products of matrices.

On a CPU torch's own product is many times as fast as one in OpenCL, and is on the same memory: so
it is the CPU's there, unless that is forbidden.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.fallback import prefers_cpu
from cputrain.opencl.product import At, Product
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.tiles import MAX_GRID_GROUPS, candidates, split_k
from cputrain.opencl.types import MAX_INT_INDEX, SCALARS, are_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.mm.default)
def product(self: OclTensor, mat2: OclTensor) -> Any:
    """Multiply two matrices."""
    return NotImplemented if self.dim() != 2 else _asked(None, self, mat2, 0.0, 1.0)


@kernel(aten.bmm.default)
def products(self: OclTensor, mat2: OclTensor) -> Any:
    """Multiply two batches of matrices."""
    return NotImplemented if self.dim() != 3 else _asked(None, self, mat2, 0.0, 1.0)


@kernel(aten.addmm.default)
def added(
    self: OclTensor, mat1: OclTensor, mat2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Compute beta * self + alpha * (mat1 @ mat2)."""
    return NotImplemented if mat1.dim() != 2 else _asked(self, mat1, mat2, beta, alpha)


@kernel(aten.baddbmm.default)
def all_added(
    self: OclTensor, batch1: OclTensor, batch2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Compute beta * self + alpha * (batch1 @ batch2) for batches."""
    return NotImplemented if batch1.dim() != 3 else _asked(self, batch1, batch2, beta, alpha)


def _asked(
    other: OclTensor | None, one: OclTensor, two: OclTensor, beta: float, alpha: float
) -> Any:
    every = [each for each in (other, one, two) if each is not None]
    if not all(isinstance(each, OclTensor) for each in every):
        return NotImplemented
    device = one.memory.device
    if (
        prefers_cpu(device)
        or any(each.memory.device is not device or each.dtype is not one.dtype for each in every)
        or not one.dtype.is_floating_point
        or not are_supported(device, one.dtype)
        or one.dim() not in (2, 3)
        or two.dim() != one.dim()
        or one.size(-1) != two.size(-2)
        or max(*one.size()[-2:], *two.size()[-2:]) > MAX_INT_INDEX
        or (one.dim() == 3 and (one.size(0) != two.size(0) or one.size(0) > MAX_GRID_GROUPS))
        or not candidates(device, one.size(-2), two.size(-1), 1, one.dtype.itemsize)
    ):
        return NotImplemented  # where something is wrong, torch will say so
    size = [*one.size()[:-1], two.size(-1)]
    try:
        third: Any = None if other is None or beta == 0 else torch.broadcast_to(other, size)
    except RuntimeError:
        return NotImplemented
    out = empty(device.index, size, contiguous(size), one.dtype)
    if out.numel():
        multiply(one, two, out, third, alpha, beta)
    return out


def multiply(
    one: OclTensor, two: OclTensor, out: OclTensor, third: OclTensor | None = None,
    alpha: float = 1.0, beta: float = 0.0,
) -> None:  # fmt: skip
    """Write the product of two matrices or two batches to a contiguous `out`."""
    plan = _plan_of(
        out.memory.device, out.dtype, one.size(), one.stride(), two.size(), two.stride(),
        None if third is None else third.stride(), alpha != 1,
    )  # fmt: skip
    plan.launch(one, two, out, third, alpha, beta)


class _Plan:
    """Tile choice and kernel arguments for matrix products of one set of sizes and strides."""

    def __init__(
        self, device: Device, kind: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...],
        other: tuple[int, ...], step: tuple[int, ...], third: tuple[int, ...] | None,
        is_scaled: bool,
    ) -> None:  # fmt: skip
        self._index, self._kind = device.index, kind
        batch = size[0] if len(size) == 3 else 1
        rows, columns, deep = size[-2], other[-1], size[-1]
        self._parts, each = split_k(device, rows, columns, deep, batch)
        if third is not None or is_scaled or batch * self._parts > MAX_GRID_GROUPS:
            self._parts, each = 1, max(1, deep)
        a_by_k, b_by_k = stride[-1] == 1, step[-2] == 1 and step[-1] != 1
        far = max(_reach(size, stride), _reach(other, step)) > MAX_INT_INDEX
        defined = (
            ("A_BY_K", int(a_by_k)), ("B_BY_K", int(b_by_k)),
            ("B_STRIDE", "1" if step[-1] == 1 else "b_n"), ("HAS_D", int(third is not None)),
            ("DIVIDED", int(self._parts > 1)), ("I", "long" if far else "int"),
        )  # fmt: skip
        pattern: list[Any] = [rows, columns, deep]
        for number, one in enumerate((stride, step, third or stride)):
            pattern += (At(number), one[-2], one[-1], one[0] if len(one) == 3 else 0)
        pattern.append(At(3))
        self._last = self._parts, each
        self._product = Product(
            device, ("matrix",), kind, defined, TYPES[kind],
            (rows, columns, deep, batch * self._parts), pattern,
        )  # fmt: skip

    def launch(
        self, one: OclTensor, two: OclTensor, out: OclTensor, third: OclTensor | None,
        alpha: float, beta: float,
    ) -> None:  # fmt: skip
        """Enqueue the product."""
        whole, parts = out, self._parts
        if parts > 1:
            whole = empty(self._index, (parts, out.numel()), (out.numel(), 1), self._kind)
        scalar = SCALARS[self._kind]
        held = one if third is None else third  # (something must be given)
        self._product.launch((one, two, held, whole), (scalar(alpha), scalar(beta), *self._last))
        if parts > 1:
            reduce("0", "A + X", "A", whole, [0], out)


_plan_of = lru_cache(maxsize=1 << 12)(_Plan)


def _reach(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the distance in elements from the first element to the last."""
    return sum((n - 1) * step for n, step in zip(size, stride, strict=True))


MATRIX = (None, *[np.int64] * 4)
LAST = (np.int32, np.int32)
TYPES = {
    kind: (*[np.int32] * 3, *MATRIX * 3, None, np.int64, SCALARS[kind], SCALARS[kind], *LAST)
    for kind in (torch.float32, torch.float64)
}
