"""Dtypes: torch's, OpenCL's and NumPy's."""

from __future__ import annotations

import math

import numpy as np
import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device

NAMES: dict[torch.dtype, str] = {
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "char",
    torch.uint8: "uchar",
    torch.bool: "uchar",
}
"""OpenCL type in which kernels compute, of each dtype that they support."""

STORED = NAMES | {torch.float16: "half", torch.bfloat16: "bfloat"}
"""OpenCL type of elements in memory, by dtype; kernels/elements.cl loads and stores them."""

COMPUTES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Dtype in which kernels compute, of the dtypes that only memory has."""

STORED_ONLY = frozenset(STORED[dtype] for dtype in COMPUTES)
"""OpenCL types of memory that variables of kernels do not have."""

MAX_INT_INDEX = (1 << 31) - 1
"""Maximum number of elements that kernels index by int."""


def index_type(count: int) -> str:
    """Return the OpenCL index type for `count` elements: int if it is large enough.

    A GPU divides ints in a fraction of the time of longs. Half of the range is left for the last
    step of loops, which goes beyond the count.
    """
    return "int" if count <= MAX_INT_INDEX // 2 else "long"


SCALARS: dict[torch.dtype, Any] = {
    torch.float16: np.float32,
    torch.bfloat16: np.float32,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.uint8,
}
"""NumPy type of a kernel's scalar arguments, by dtype."""


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which kernels compute with elements of a dtype."""
    return COMPUTES.get(dtype, dtype)


def element_definitions(dtype: torch.dtype) -> dict[str, str]:
    """Return the preprocessor definitions of a kernel over elements of one dtype.

    T is the type of its variables, ELEMENT that of memory; LOAD and STORE convert.
    """
    return {"T": NAMES[dtype], **access_definitions(dtype, "ELEMENT")}


def access_definitions(dtype: torch.dtype, name: str) -> dict[str, str]:
    """Return definitions of a type in memory, and of its LOAD_NAME and STORE_NAME.

    Those of ELEMENT are named LOAD and STORE.
    """
    stored, suffix = STORED[dtype], "" if name == "ELEMENT" else f"_{name}"
    return {
        name: stored,
        f"LOAD{suffix}(p, i)": f"LOAD_{stored}(p, i)",
        f"STORE{suffix}(p, i, x)": f"STORE_{stored}(p, i, x)",
    }


def are_supported(device: Device, *types: torch.dtype) -> bool:
    """Return whether kernels of this device support all of these dtypes."""
    return all(
        dtype in NAMES and (dtype is not torch.float64 or device.has_double) for dtype in types
    )


def can_represent(dtype: torch.dtype, value: Any) -> bool:
    """Return whether a dtype can represent a value without overflow or truncation."""
    if dtype.is_floating_point:
        if -6e4 < value < 6e4:  # the common case
            return True
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    if dtype is torch.bool:
        return value in (0, 1)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return False
    return bool(torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max)


EXACT_INTEGERS = {
    torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24, torch.float64: 1 << 53,
}  # fmt: skip
"""Largest magnitude up to which a floating-point dtype represents every integer."""


def can_represent_range(dtype: torch.dtype, low: int, high: int) -> bool:
    """Return whether a dtype represents every integer from `low` to `high`."""
    if dtype not in NAMES:
        return False
    if dtype is torch.bool:
        return low >= 0 and high <= 1
    if dtype in EXACT_INTEGERS:
        return -EXACT_INTEGERS[dtype] <= low and high <= EXACT_INTEGERS[dtype]
    bounds = torch.iinfo(dtype)
    return bounds.min <= low and high <= bounds.max
