"""Products of matrices.

On a CPU torch's own product is many times as fast as one in OpenCL, and is on the same memory: so
it is the CPU's there, unless that is forbidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cputrain.opencl.fallback import is_chosen
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, made
from cputrain.opencl.tiles import Tile, best, groups, tiled
from cputrain.opencl.types import NAMES, SCALARS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

MOST = (1 << 16) - 1
"""Groups in the third direction, on some devices."""

LARGEST = (1 << 31) - 1
"""Elements that an int counts."""


@kernel(aten.mm.default, aten.bmm.default)
def product(self: OclTensor, mat2: OclTensor) -> Any:
    """Of two matrices, or of each pair in two batches."""
    return _multiplied(None, self, mat2, 0.0, 1.0)


@kernel(aten.addmm.default, aten.baddbmm.default)
def added(
    self: OclTensor, batch1: OclTensor, batch2: OclTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """The same, and something else."""
    return _multiplied(self, batch1, batch2, beta, alpha)


def _multiplied(
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
        or one.dtype not in NAMES
        or (one.dtype is torch.float64 and not device.has_double)
        or one.dim() not in (2, 3)
        or two.dim() != one.dim()
        or one.size(-1) != two.size(-2)
        or (one.dim() == 3 and (one.size(0) != two.size(0) or one.size(0) > MOST))
    ):
        return NotImplemented  # where something is wrong, torch will say so
    size = [*one.size()[:-1], two.size(-1)]
    try:
        third = None if other is None or beta == 0 else torch.broadcast_to(other, size)
    except RuntimeError:
        return NotImplemented
    out = made(device.index, size, contiguous(size), one.dtype)
    if not out.numel():
        return out
    batches = one.size(0) if one.dim() == 3 else 1
    rows, columns, deep = one.size(-2), two.size(-1), one.size(-1)
    tile = best(device, rows, columns, deep, batches)
    arguments: list[Any] = [rows, columns, deep]
    for each in (one, two, third):
        held: Any = one if each is None else each  # (something must be given)
        batch = held.stride(0) if held.dim() == 3 else 0
        arguments += [
            held.memory.buffer, held.storage_offset(), held.stride(-2), held.stride(-1), batch
        ]  # fmt: skip
    scalar = SCALARS[one.dtype]
    arguments += [out.memory.buffer, 0, scalar(alpha), scalar(beta)]
    far = any(_reach(each) > LARGEST for each in (one, two))
    ready = _ready(
        device, tile, one.dtype, one.stride(-1) == 1, two.stride(-1), two.stride(-2) == 1,
        third is not None, far,
    )  # fmt: skip
    across, down = groups(tile, rows, columns)
    with device.lock:
        ready(device.queue, (across * tile.items, down, batches), (tile.items, 1, 1), *arguments)
    return out


def _reach(one: OclTensor) -> int:
    """How far its last element is from its first."""
    return sum((n - 1) * step for n, step in zip(one.size(), one.stride(), strict=True))


def _ready(
    device: Device, tile: Tile, kind: torch.dtype, a_by_k: bool, b_step: int, b_by_k: bool,
    has_third: bool, far: bool,
) -> Any:  # fmt: skip
    defined = (
        ("A_BY_K", int(a_by_k)), ("B_BY_K", int(b_by_k and b_step != 1)),
        ("B_STRIDE", "1" if b_step == 1 else "b_n"), ("HAS_D", int(has_third)),
        ("I", "long" if far else "int"),
    )  # fmt: skip
    return tiled(device, ("matrix",), tile, kind, defined, TYPES[kind])


MATRIX = (None, *[np.int64] * 4)
TYPES = {
    kind: (*[np.int32] * 3, *MATRIX * 3, None, np.int64, SCALARS[kind], SCALARS[kind])
    for kind in (torch.float32, torch.float64)
}
