"""Elementwise kernels: evaluate an expression over broadcast tensors.

A kernel is generated for each expression, dtypes and number of dimensions. Dimensions that are
contiguous to one another in all tensors are collapsed; tensors of equal dense layout have just one.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import numpy as np
import torch

from cputrain.opencl.program import compile_kernel
from cputrain.opencl.types import COMPUTES, NAMES, SCALARS, STORED, STORED_ONLY, index_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.opencl.device import Device
    from cputrain.opencl.tensor import OclTensor

    NamedTensor = tuple[str, OclTensor]
    Metadata = tuple[torch.dtype, Sequence[int], Sequence[int]]
    Scalar = tuple[str, torch.dtype, float]

GROUP = 256
"""Work-group size of elementwise kernels."""


def launch_size(count: int) -> tuple[tuple[int], tuple[int]]:
    """Return the global size, rounded up, and the work-group size for one item per element."""
    return (-(-count // GROUP) * GROUP,), (GROUP,)


def run(
    expression: str,
    out: OclTensor,
    tensors: Sequence[NamedTensor],
    scalars: Sequence[Scalar] = (),
    *,
    computes: torch.dtype,
) -> None:
    """Evaluate an OpenCL expression for each element and write it to `out`.

    Args:
        expression: OpenCL C expression over the names of tensors and scalars.
        out: Tensor to write to; the others are broadcast to its size.
        tensors: (name, tensor) pairs; elements are cast to `computes` when read.
        scalars: (name, dtype, value) triples.
        computes: Dtype to compute in.
    """
    device = out.memory.device
    kernel, count, trailing = _prepare(
        device,
        expression,
        (out.dtype, out.size(), out.stride()),
        tuple([(name, tensor.dtype, tensor.size(), tensor.stride()) for name, tensor in tensors]),
        tuple([(name, dtype) for name, dtype, _ in scalars]),
        computes,
    )
    if not count:
        return
    arguments: list[object] = [out.memory.buffer, out.storage_offset()]
    for _, tensor in tensors:
        arguments += (tensor.memory.buffer, tensor.storage_offset())
    arguments += [SCALARS[dtype](value) for _, dtype, value in scalars]
    device.launch(kernel, *launch_size(count), count, *arguments, *trailing)


@lru_cache(maxsize=1 << 14)
def _prepare(
    device: Device,
    expression: str,
    out: Metadata,
    tensors: tuple[tuple[str, torch.dtype, Sequence[int], Sequence[int]], ...],
    scalars: tuple[tuple[str, torch.dtype], ...],
    computes: torch.dtype,
) -> tuple[Any, int, list[int]]:
    """Return the kernel, the number of elements, and the trailing size and stride arguments."""
    out_dtype, size, stride = out
    count = prod(size)
    if not count:
        return None, 0, []
    strides_by_tensor = [
        list(stride),
        *(expanded_strides(shape, stride_step, size) for _, _, shape, stride_step in tensors),
    ]
    sizes, strides = collapse_dims(size, strides_by_tensor)
    is_flat = len(sizes) == 1 and all(tensor_strides[0] == 1 for tensor_strides in strides)
    source = source_of(
        expression,
        STORED[out_dtype],
        tuple((name, STORED[dtype]) for name, dtype, _, _ in tensors),
        tuple((name, NAMES[dtype]) for name, dtype in scalars),
        NAMES[computes],
        STORED[computes] if computes in COMPUTES else "",
        0 if is_flat else len(sizes),
        index_type(count),
        is_bool=out_dtype is torch.bool,
    )
    trailing = (
        []
        if is_flat
        else [
            *sizes,
            *(stride_step for tensor_strides in strides for stride_step in tensor_strides),
        ]
    )
    types: list[object] = [np.int64]
    types += [None, np.int64] * (1 + len(tensors))
    types += [SCALARS[dtype] for _, dtype in scalars]
    types += [np.int64] * len(trailing)
    return compile_kernel(device, source, "elements", tuple(types)), count, trailing


def expanded_strides(shape: Sequence[int], stride: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return the strides of a tensor expanded to `size`: 0 in broadcast dimensions."""
    missing = [0] * (len(size) - len(shape))
    return missing + [0 if n == 1 else step for n, step in zip(shape, stride, strict=True)]


def collapse_dims(
    size: Sequence[int], strides: Sequence[list[int]]
) -> tuple[list[int], list[list[int]]]:
    """Collapse dimensions; return sizes and, for each tensor, strides, innermost first."""
    sizes: list[int] = []
    collapsed_strides: list[list[int]] = [[] for _ in strides]
    for dim in range(len(size) - 1, -1, -1):
        if size[dim] == 1:
            continue
        if sizes and all(
            stride[dim] == step[-1] * sizes[-1]
            for stride, step in zip(strides, collapsed_strides, strict=True)
        ):
            sizes[-1] *= size[dim]
            continue
        sizes.append(size[dim])
        for stride, step in zip(strides, collapsed_strides, strict=True):
            step.append(stride[dim])
    if not sizes:
        return [1], [[1] for _ in strides]
    return sizes, collapsed_strides


@cache
def source_of(
    expression: str,
    out: str,
    tensors: tuple[tuple[str, str], ...],
    scalars: tuple[tuple[str, str], ...],
    computes: str,
    rounds_to: str,
    dims: int,
    counts: str,
    *,
    is_bool: bool,
) -> str:
    """Return the kernel's source; 0 `dims` means all tensors are dense and of equal layout.

    Elements of other types than `rounds_to`, if it is not empty, are rounded to it when read.
    """
    names = ["out", *(name for name, _ in tensors)]
    parameters = ["const long count", f"__global {out}* p_out", "long i_out"]
    for name, dtype in tensors:
        parameters += [f"__global const {dtype}* p_{name}", f"long i_{name}"]
    parameters += [f"const {dtype} {name}" for name, dtype in scalars]
    parameters += [f"const long n{dim}" for dim in range(dims)]
    parameters += [f"const long s{dim}_{name}" for name in names for dim in range(dims)]
    lines = [f"{counts} at = get_global_id(0);", f"if (at >= ({counts})count) return;"]
    if dims:
        for dim in range(dims):
            last = dim == dims - 1
            size = f"({counts})n{dim}"
            lines.append(f"{{ const long c = at{'' if last else f' % {size}'};")
            lines += [f"i_{name} += c * s{dim}_{name};" for name in names]
            lines.append("}" if last else f"at /= {size}; }}")
    else:
        lines += [f"i_{name} += at;" for name in names]
    for name, dtype in tensors:
        value = f"({computes})LOAD_{dtype}(p_{name}, i_{name})"
        if rounds_to not in ("", dtype):
            value = f"rounded_to_{rounds_to}({value})"
        lines.append(f"const {computes} {name} = {value};")
    if is_bool:
        expression = f"({expression}) != 0"
    elif out not in STORED_ONLY:
        expression = f"({out})({expression})"
    lines.append(f"STORE_{out}(p_out, i_out, {expression});")
    lines.insert(0, f"typedef {computes} T;")
    body = "\n  ".join(lines)
    return f"__kernel void elements({', '.join(parameters)})\n{{\n  {body}\n}}\n"
