"""Foreach kernels: run statements over lists of tensors, several tensors per launch."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.program import compile_kernel
from cputrain.opencl.shapes import byte_range, is_dense
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.types import (
    MAX_INT_INDEX,
    NAMES,
    SCALARS,
    STORED,
    STORED_ONLY,
    are_supported,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cputrain.opencl.device import Device

    Lists = Mapping[str, Sequence[OclTensor]]

MAX_TENSORS = 48
"""Maximum number of tensors of a list per launch."""

SCALAR_BYTES = 256
"""Bytes of a launch's arguments that are left to those that are the same for all tensors."""


def are_uniform(lists: Lists, single: Sequence[str] = ()) -> bool:
    """Return whether `each_of` can run over these lists.

    Tensors at the same index of the lists must have equal size, strides, dtype and device, be dense
    and not overlap; tensors of the lists named in `single` have one element.
    """
    first = next(iter(lists.values()))
    if not first or any(len(item) != len(first) for item in lists.values()):
        return False
    if not all(isinstance(item, OclTensor) for tensors in lists.values() for item in tensors):
        return False
    dtype, device = first[0].dtype, first[0].memory.device
    if not (dtype.is_floating_point and are_supported(device, dtype)):
        return False
    metadata = [(item.size(), item.stride()) for item in first]
    for name, tensors in lists.items():
        if {item.memory.device for item in tensors} != {device}:
            return False
        types = {item.dtype for item in tensors}
        if name in single:
            if (
                len(types) > 1
                or not types <= NAMES.keys()
                or any(item.numel() > 1 for item in tensors)
            ):
                return False
        elif types != {dtype} or [(item.size(), item.stride()) for item in tensors] != metadata:
            return False
    if any(item.numel() > MAX_INT_INDEX for item in first):
        return False
    return all(_is_dense(*size_and_stride) for size_and_stride in metadata) and not _overlap(
        lists, single
    )


def _overlap(lists: Lists, single: Sequence[str]) -> bool:
    """Return whether tensors at different indices share elements, or tensors partly overlap.

    Torch updates one tensor after the other and refuses some overlaps; a kernel has no such order.
    """
    ranges: dict[int, set[tuple[int, int, int]]] = {}
    for name, tensors in lists.items():
        for index, tensor in enumerate(tensors):
            if tensor.numel():
                owner = -1 if name in single else index
                ranges.setdefault(id(tensor.memory), set()).add((*byte_range(tensor), owner))
    for spans in ranges.values():
        if len(spans) > 1:
            ordered = sorted(spans)
            for (_, end, _), (begin, _, _) in pairwise(ordered):
                if begin < end:
                    return True
    return False


def _num_per_launch(device: Device, num_lists: int, num_per_tensor: int) -> int:
    """Return how many tensors fit into a launch, by the bytes of its arguments."""
    bytes_each = 8 + 16 * num_lists + 8 * num_per_tensor
    return max(1, min(MAX_TENSORS, (device.argument_bytes - SCALAR_BYTES) // bytes_each))


def _launch_groups(sizes: Sequence[tuple[int, int]], maximum: int) -> list[list[int]]:
    """Split tensors, as (index, size), into launches of at most `maximum` tensors."""
    groups: list[list[int]] = []
    total = 0
    for index, size in sizes:
        if not groups or len(groups[-1]) == maximum or total + size > MAX_INT_INDEX:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += size
    return groups


_is_dense = lru_cache(maxsize=1 << 12)(is_dense)


def run_each(
    body: str, lists: Lists, scalars: Mapping[str, float] | None = None,
    per_tensor: Mapping[str, Sequence[float]] | None = None, single: Sequence[str] = (),
) -> None:  # fmt: skip
    """Run OpenCL statements for each element of lists of tensors that `are_uniform`.

    Args:
        body: OpenCL C statements over the names of lists and scalars.
        lists: Lists of tensors by name.
        scalars: Scalars by name, the same for all tensors.
        per_tensor: Lists of scalars by name, one value for each tensor.
        single: Names of the lists whose tensors have one element.
    """
    scalars, per_tensor = scalars or {}, per_tensor or {}
    first = next(iter(lists.values()))
    device, dtype = first[0].memory.device, first[0].dtype
    scalar_type = SCALARS[dtype]
    trailing = [scalar_type(item) for item in scalars.values()]
    singles = tuple((name, STORED[lists[name][0].dtype]) for name in single)
    indices = [index for index, item in enumerate(first) if item.numel()]
    maximum = _num_per_launch(device, len(lists), len(per_tensor))
    for group in _launch_groups([(index, first[index].numel()) for index in indices], maximum):
        kernel = _build_kernel(
            device,
            body,
            dtype,
            len(group),
            tuple(lists),
            singles,
            tuple(scalars),
            tuple(per_tensor),
        )
        ends = np.cumsum([first[index].numel() for index in group], dtype=np.int64)
        total = int(ends[-1])
        arguments: list[Any] = [int(end) for end in ends]
        for tensors in lists.values():
            for index in group:
                arguments += (tensors[index].memory.buffer, tensors[index].storage_offset())
        for values in per_tensor.values():
            arguments += [scalar_type(values[index]) for index in group]
        device.launch(kernel, *launch_size(total), *arguments, *trailing)


@lru_cache(maxsize=1 << 10)
def _build_kernel(
    device: Device, body: str, dtype: torch.dtype, num_tensors: int, lists: tuple[str, ...],
    single: tuple[tuple[str, str], ...], scalars: tuple[str, ...], per_tensor: tuple[str, ...],
) -> Any:  # fmt: skip
    scalar_type = SCALARS[dtype]
    types = (
        *[np.int32] * num_tensors, *(None, np.int64) * (num_tensors * len(lists)),
        *[scalar_type] * (num_tensors * len(per_tensor) + len(scalars)),
    )  # fmt: skip
    source = source_of(
        body, NAMES[dtype], STORED[dtype], num_tensors, lists, single, scalars, per_tensor
    )
    return compile_kernel(device, source, "foreach", types)


@cache
def source_of(
    body: str, type_name: str, stored: str, num_tensors: int, lists: tuple[str, ...],
    single: tuple[tuple[str, str], ...], scalars: tuple[str, ...], per_tensor: tuple[str, ...],
) -> str:  # fmt: skip
    """Return the kernel's source: each work item finds the tensor that its element belongs to."""
    types = dict(single)
    parameters = [f"const int end{index}" for index in range(num_tensors)]
    for name in lists:
        for index in range(num_tensors):
            parameters += [
                f"__global {types.get(name, stored)}* {name}{index}",
                f"const long {name}_at{index}",
            ]
    parameters += [f"const T {name}{index}" for name in per_tensor for index in range(num_tensors)]
    parameters += [f"const T {name}" for name in scalars]

    def choice(begin: int, end: int) -> str:
        """Return statements that choose among tensors by halves."""
        if end - begin > 1:
            middle = (begin + end) // 2
            first, second = choice(begin, middle), choice(middle, end)
            return f"if (at < end{middle - 1}) {{ {first} }} else {{ {second} }}"
        start = f"i = at - end{begin - 1};" if begin else "i = at;"
        assignments = [f"p_{name} = {name}{begin} + {name}_at{begin};" for name in lists]
        assignments += [f"{name} = {name}{begin};" for name in per_tensor]
        return f"{start} {' '.join(assignments)}"

    loads = stores = ""
    for name in lists:
        place = f"p_{name}, {0 if name in types else 'i'}"
        kind = types.get(name, stored)
        if re.search(rf"\b{name}\s*[-+*/]?=[^=]", body):
            stores += f" STORE_{kind}({place}, {name});"
        variable = "T" if name not in types or kind in STORED_ONLY else kind
        loads += f"  {variable} {name} = LOAD_{kind}({place});\n"
    pointers = "".join(f"  __global {types.get(name, stored)}* p_{name};\n" for name in lists)
    scalar_declarations = "".join(f"  T {name};\n" for name in per_tensor)
    return f"""#define T {type_name}
__kernel void foreach({", ".join(parameters)})
{{
  const int at = get_global_id(0);
  if (at >= end{num_tensors - 1}) return;
  int i;
{pointers}{scalar_declarations}  {choice(0, num_tensors)}
{loads}  {body}{stores}
}}
"""
