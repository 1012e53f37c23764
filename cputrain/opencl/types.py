"""Types of numbers: torch's, OpenCL's and NumPy's."""

from __future__ import annotations

import math

import numpy as np
import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device

NAMES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "char",
    torch.uint8: "uchar",
    torch.bool: "uchar",
}
"""Those that kernels know."""

LARGEST = (1 << 31) - 1
"""Elements that an int of a kernel counts."""


def counted_by(count: int) -> str:
    """What a kernel counts so many elements by, with a step beyond them. A GPU divides an int in a
    fraction of the time."""
    return "int" if count <= LARGEST // 2 else "long"


SCALARS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.uint8,
}


def are_known(device: Device, *types: torch.dtype) -> bool:
    """Whether kernels of this device can be made for all of them."""
    return all(one in NAMES and (one is not torch.float64 or device.has_double) for one in types)


def holds(kind: torch.dtype, value: Any) -> bool:
    """Whether a number of this type is this one."""
    if kind.is_floating_point:
        if -1e38 < value < 1e38:  # nearly all are
            return True
        return not math.isfinite(value) or abs(value) <= torch.finfo(kind).max
    if kind is torch.bool:
        return value in (0, 1)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return False
    return bool(torch.iinfo(kind).min <= value <= torch.iinfo(kind).max)
