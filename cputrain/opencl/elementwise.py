"""One expression for each element, over tensors that are broadcast with one another.

A kernel is made for the expression, the types and the number of dimensions that are left once those
that lie behind one another in all tensors are made one. Where all tensors lie alike, that is one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from cputrain.opencl.program import kernel_of
from cputrain.opencl.types import NAMES, SCALARS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.tensor import OclTensor

    Named = tuple[str, OclTensor]
    Scalar = tuple[str, torch.dtype, float]

GROUP = 256
"""Elements that are computed side by side."""


def run(
    expression: str,
    out: OclTensor,
    tensors: Sequence[Named],
    scalars: Sequence[Scalar] = (),
    *,
    computes: torch.dtype,
) -> None:
    """Write the expression's value for each element of `out`.

    Tensors and scalars go by their names in it; tensors are read as what is `computes`d in.
    """
    count = out.numel()
    if not count:
        return
    device = out.memory.device
    every = [out, *(one for _, one in tensors)]
    sizes, strides = folded(out.size(), [stretched(one, out.size()) for one in every])
    flat = len(sizes) == 1 and all(one[0] == 1 for one in strides)
    source = source_of(
        expression,
        NAMES[out.dtype],
        tuple((name, NAMES[one.dtype]) for name, one in tensors),
        tuple((name, NAMES[kind]) for name, kind, _ in scalars),
        NAMES[computes],
        0 if flat else len(sizes),
        is_bool=out.dtype is torch.bool,
    )
    types: list[object] = [np.int64]
    arguments: list[object] = [count]
    for one in every:
        types += [None, np.int64]
        arguments += [one.memory.buffer, one.storage_offset()]
    for _, kind, value in scalars:
        types.append(SCALARS[kind])
        arguments.append(SCALARS[kind](value))
    if not flat:
        for number in (*sizes, *(step for one in strides for step in one)):
            types.append(np.int64)
            arguments.append(number)
    kernel = kernel_of(device, source, "elements", tuple(types))
    kernel(device.queue, (-(-count // GROUP) * GROUP,), (GROUP,), *arguments)


def stretched(one: OclTensor, size: Sequence[int]) -> list[int]:
    """Its strides as if it had this size: what is broadcast does not move."""
    missing = len(size) - one.dim()
    own = one.size()
    return [0] * missing + [0 if own[dim] == 1 else step for dim, step in enumerate(one.stride())]


def folded(size: Sequence[int], strides: Sequence[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The same with as few dimensions as possible, in their order."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for dim in range(len(size) - 1, -1, -1):
        if size[dim] == 1:
            continue
        if sizes and all(
            one[dim] == step[-1] * sizes[-1] for one, step in zip(strides, steps, strict=True)
        ):
            sizes[-1] *= size[dim]
            continue
        sizes.append(size[dim])
        for one, step in zip(strides, steps, strict=True):
            step.append(one[dim])
    if not sizes:
        return [1], [[1] for _ in strides]
    return sizes, steps


@cache
def source_of(
    expression: str,
    out: str,
    tensors: tuple[tuple[str, str], ...],
    scalars: tuple[tuple[str, str], ...],
    computes: str,
    dims: int,
    *,
    is_bool: bool,
) -> str:
    """The kernel's; with no dimensions, all lie alike. The innermost dimension is the first."""
    names = ["out", *(name for name, _ in tensors)]
    parameters = ["const long count", f"__global {out}* p_out", "long i_out"]
    for name, kind in tensors:
        parameters += [f"__global const {kind}* p_{name}", f"long i_{name}"]
    parameters += [f"const {kind} {name}" for name, kind in scalars]
    parameters += [f"const long n{dim}" for dim in range(dims)]
    parameters += [f"const long s{dim}_{name}" for name in names for dim in range(dims)]
    lines = ["long at = get_global_id(0);", "if (at >= count) return;"]
    if dims:
        for dim in range(dims):
            last = dim == dims - 1
            lines.append(f"{{ long c = at{'' if last else f' % n{dim}'};")
            lines += [f"i_{name} += c * s{dim}_{name};" for name in names]
            lines.append("}" if last else f"at /= n{dim}; }}")
    else:
        lines += [f"i_{name} += at;" for name in names]
    lines += [f"const {computes} {name} = ({computes})p_{name}[i_{name}];" for name, _ in tensors]
    value = f"({expression}) != 0" if is_bool else f"({out})({expression})"
    lines.append(f"p_out[i_out] = {value};")
    lines.insert(0, f"typedef {computes} T;")
    wide = (
        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
        if "double" in (computes, *str(parameters).split())
        else ""
    )
    body = "\n  ".join(lines)
    return f"{wide}__kernel void elements({', '.join(parameters)})\n{{\n  {body}\n}}\n"
