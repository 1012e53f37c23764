"""Products of matrices.

On a CPU torch's own product is many times as fast as one in OpenCL, and is on the same memory: so
it is the CPU's there, unless that is forbidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cputrain.opencl.fallback import is_chosen
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, made
from cputrain.opencl.tiles import groups, parts_of, tiled
from cputrain.opencl.tuning import tuning_of
from cputrain.opencl.types import SCALARS, are_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device
    from cputrain.opencl.tiles import Tile

aten = torch.ops.aten

MOST = (1 << 16) - 1
"""Groups in the third direction, on some devices."""

LARGEST = (1 << 31) - 1
"""Elements that an int counts."""


@kernel(aten.mm.default, aten.bmm.default)
def product(self: OclTensor, mat2: OclTensor) -> Any:
    """Of two matrices, or of each pair in two batches."""
    return _asked(None, self, mat2, 0.0, 1.0)


@kernel(aten.addmm.default, aten.baddbmm.default)
def added(
    self: OclTensor, batch1: OclTensor, batch2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """The same, and something else."""
    return _asked(self, batch1, batch2, beta, alpha)


def _asked(
    other: OclTensor | None, one: OclTensor, two: OclTensor, beta: float, alpha: float
) -> Any:
    every = [each for each in (other, one, two) if each is not None]
    if not all(isinstance(each, OclTensor) for each in every):
        return NotImplemented
    device = one.memory.device
    if (
        is_chosen(device)
        or any(each.memory.device is not device or each.dtype is not one.dtype for each in every)
        or not one.dtype.is_floating_point
        or not are_known(device, one.dtype)
        or one.dim() not in (2, 3)
        or two.dim() != one.dim()
        or one.size(-1) != two.size(-2)
        or max(*one.size()[-2:], *two.size()[-2:]) > LARGEST
        or (one.dim() == 3 and (one.size(0) != two.size(0) or one.size(0) > MOST))
    ):
        return NotImplemented  # where something is wrong, torch will say so
    size = [*one.size()[:-1], two.size(-1)]
    try:
        third = None if other is None or beta == 0 else torch.broadcast_to(other, size)
    except RuntimeError:
        return NotImplemented
    out = made(device.index, size, contiguous(size), one.dtype)
    if out.numel():
        multiply(one, two, out, third, alpha, beta)
    return out


def multiply(
    one: OclTensor, two: OclTensor, out: OclTensor, third: OclTensor | None = None,
    alpha: float = 1.0, beta: float = 0.0,
) -> None:  # fmt: skip
    """Write the product of matrices, or of each pair of two batches; `out` is without gaps."""
    device, kind = out.memory.device, out.dtype
    batch = one.size(0) if one.dim() == 3 else 1
    rows, columns, deep = one.size(-2), two.size(-1), one.size(-1)
    parts, each = parts_of(device, rows, columns, deep, batch)
    if third is not None or alpha != 1 or batch * parts > MOST:
        parts, each = 1, max(1, deep)
    matrices: list[Any] = []
    for held in (one, two, one if third is None else third):  # (something must be given)
        step = held.stride(0) if held.dim() == 3 else 0
        matrices += (
            held.memory.buffer, held.storage_offset(), held.stride(-2), held.stride(-1), step
        )  # fmt: skip
    whole = out
    if parts > 1:
        whole = made(device.index, (parts, out.numel()), (out.numel(), 1), kind)
    scalar = SCALARS[kind]
    last = (whole.memory.buffer, whole.storage_offset(), scalar(alpha), scalar(beta), parts, each)
    a_by_k, b_step = one.stride(-1) == 1, two.stride(-1)
    b_by_k = two.stride(-2) == 1 and b_step != 1
    far = any(_reach(held) > LARGEST for held in (one, two))
    defined = (
        ("A_BY_K", int(a_by_k)), ("B_BY_K", int(b_by_k)),
        ("B_STRIDE", "1" if b_step == 1 else "b_n"), ("HAS_D", int(third is not None)),
        ("I", "long" if far else "int"),
    )  # fmt: skip

    def ask(tile: Tile) -> None:
        ready = tiled(device, ("matrix",), tile, kind, defined, TYPES[kind])
        across, down = groups(tile, rows, columns)
        with device.lock:
            ready(
                device.queue, (across * tile.items, down, batch * parts), (tile.items, 1, 1),
                rows, columns, deep, *matrices, *last,
            )  # fmt: skip

    what = f"matrix {kind} {int(a_by_k)}{int(b_by_k)}"
    ask(tuning_of(device).tile(what, rows, columns, deep, batch * parts, ask))
    if parts > 1:
        reduce("0", "A + X", "A", whole, [0], out)


def _reach(one: OclTensor) -> int:
    """How far its last element is from its first."""
    return sum((n - 1) * step for n, step in zip(one.size(), one.stride(), strict=True))


MATRIX = (None, *[np.int64] * 4)
TYPES = {
    kind: (
        *[np.int32] * 3, *MATRIX * 3, None, np.int64, SCALARS[kind], SCALARS[kind],
        np.int32, np.int32,
    )  # fmt: skip
    for kind in (torch.float32, torch.float64)
}
