"""Reductions without atomics, in a deterministic order.

The elements that are reduced to one output are divided into chunks, which run in parallel; a second
kernel reduces the chunks, in order. With many outputs, each has a single chunk.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import numpy as np
import torch

from cputrain.opencl.elementwise import collapse_dims, launch_size
from cputrain.opencl.program import compile_kernel
from cputrain.opencl.tensor import empty
from cputrain.opencl.types import NAMES, STORED, computes_in, index_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.opencl.device import Device
    from cputrain.opencl.tensor import OclTensor

MAX_CHUNKS = 256
"""Maximum number of chunks of one output."""

MIN_CHUNK_ELEMENTS = 64
"""Minimum number of elements of a chunk."""

MANY_OUTPUTS = 1 << 14
"""Number of outputs from which each has a single chunk."""


def reduce(
    start: str, step: str, end: str, tensor: OclTensor, dims: Sequence[int], out: OclTensor,
    merge: str | None = None,
) -> None:  # fmt: skip
    """Reduce a tensor over dimensions.

    Args:
        start: OpenCL expression of the accumulator A's initial value.
        step: Expression of the next A, from A and the next element X.
        end: Expression of the result, from A and the COUNT of elements.
        tensor: Tensor to reduce.
        dims: Dimensions to reduce.
        out: Contiguous tensor for the result, with the remaining dimensions in their order.
        merge: Expression that merges the accumulators A and X of two chunks, if that is not
            `step` (as in sums of squares).
    """
    kept_dims = [dim for dim in range(tensor.dim()) if dim not in dims]
    size, stride = tensor.size(), tensor.stride()
    outputs, count = prod(size[dim] for dim in kept_dims), prod(size[dim] for dim in dims)
    if not outputs:
        return
    chunks = 1
    if outputs < MANY_OUTPUTS:
        chunks = max(1, min(MAX_CHUNKS, count // MIN_CHUNK_ELEMENTS, MANY_OUTPUTS // outputs))
    device = out.memory.device
    computes = _accumulator_dtype(out.dtype)
    first = out if chunks == 1 else empty(device.index, (outputs * chunks,), (1,), computes)
    kernel, trailing = _prepare(
        device, start, step, end if chunks == 1 else "A", STORED[tensor.dtype], STORED[first.dtype],
        NAMES[computes], (tuple(size[d] for d in kept_dims), tuple(stride[d] for d in kept_dims)),
        (tuple(size[d] for d in dims), tuple(stride[d] for d in dims)),
    )  # fmt: skip
    _launch(device, kernel, outputs * chunks, chunks, count, count, first, tensor, trailing)
    if chunks > 1:
        merge_kernel, trailing = _prepare(
            device, start, merge or step, end, NAMES[computes], STORED[out.dtype],
            NAMES[computes], ((outputs,), (chunks,)), ((chunks,), (1,)),
        )  # fmt: skip
        _launch(device, merge_kernel, outputs, 1, chunks, count, out, first, trailing)


def _accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype is torch.bool else computes_in(dtype)


def _launch(
    device: Device, kernel: Any, items: int, chunks: int, count: int, total: int, out: OclTensor,
    tensor: OclTensor, trailing: list[int],
) -> None:  # fmt: skip
    device.launch(
        kernel, *launch_size(items), items, chunks, count, total,
        out.memory.buffer, out.storage_offset(), tensor.memory.buffer, tensor.storage_offset(),
        *trailing,
    )  # fmt: skip


@lru_cache(maxsize=1 << 12)
def _prepare(
    device: Device, start: str, step: str, end: str, read: str, written: str, computes: str,
    kept_dims: tuple[tuple[int, ...], tuple[int, ...]],
    dims: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Any, list[int]]:  # fmt: skip
    outer, (outer_steps,) = collapse_dims(kept_dims[0], [list(kept_dims[1])])
    inner, (inner_steps,) = collapse_dims(dims[0], [list(dims[1])])
    counts = index_type(prod(outer) * prod(inner))
    source = source_of(start, step, end, read, written, computes, counts, len(outer), len(inner))
    trailing = [*outer, *outer_steps, *inner, *inner_steps]
    types: list[object] = [
        *[np.int64] * 4,
        None,
        np.int64,
        None,
        np.int64,
        *[np.int64] * len(trailing),
    ]
    return compile_kernel(device, source, "reduced", tuple(types)), trailing


@cache
def source_of(
    start: str, step: str, end: str, read: str, written: str, computes: str, counts: str,
    outer: int, inner: int,
) -> str:  # fmt: skip
    """Return the kernel's source for `outer` remaining and `inner` reduced dimensions."""
    in_blocks = start == "0" and step.startswith("A + ")
    parameters = [
        "const long items", "const long chunks", "const long count", "const long COUNT",
        f"__global {written}* out", "const long out_at", f"__global const {read}* in",
        "const long in_at",
    ]  # fmt: skip
    for name, num_dims in (("k", outer), ("r", inner)):
        parameters += [f"const long {name}n{dim}" for dim in range(num_dims)]
        parameters += [f"const long {name}s{dim}" for dim in range(num_dims)]
    return f"""typedef {computes} T;
__kernel void reduced({", ".join(parameters)})
{{
  typedef {counts} N;
  const N item = get_global_id(0);
  if (item >= (N)items) return;
  const N chunk = item % (N)chunks;
  N at = item / (N)chunks;
  long begin = in_at;
  {_offset_code("k", "begin", outer)}
  T A = {start};
  {"T B = A, C = A; N added = 0;" if in_blocks else ""}
  for (N number = chunk; number < (N)count; number += (N)chunks) {{
    long place = begin;
    at = number;
    {_offset_code("r", "place", inner)}
    const T X = (T)LOAD_{read}(in, place);
    A = {step};
    {_BLOCKS if in_blocks else ""}
  }}
  {"A += B + C;" if in_blocks else ""}
  STORE_{written}(out, out_at + item, {end});
}}
"""


_BLOCKS = (
    """if ((++added & 63) == 0) { B += A; A = 0; if ((added & 4095) == 0) { C += B; B = 0; } }"""
)
"""Sum in blocks of blocks: adding many numbers one by one loses low-order digits."""


def _offset_code(name: str, position: str, num_dims: int) -> str:
    lines = []
    for dim in range(num_dims):
        last = dim == num_dims - 1
        index = "at" if last else f"at % (N){name}n{dim}"
        lines.append(f"{position} += (long)({index}) * {name}s{dim};")
        if not last:
            lines.append(f"at /= (N){name}n{dim};")
    return " ".join(lines)
