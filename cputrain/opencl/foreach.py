"""Foreach kernels: run statements over lists of tensors, several tensors per launch."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import torch

from cputrain.opencl.elementwise import in_groups
from cputrain.opencl.program import kernel_of
from cputrain.opencl.shapes import is_dense, reach
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.types import LARGEST, NAMES, SCALARS, are_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cputrain.opencl.device import Device

    Lists = Mapping[str, Sequence[OclTensor]]

PACK = 8
"""Maximum number of tensors of a list per launch."""


def fit(lists: Lists, single: Sequence[str] = ()) -> bool:
    """Return whether `each_of` can run over these lists.

    Tensors at the same index of the lists must have equal size, strides, dtype and device, be dense
    and not overlap; tensors of the lists named in `single` have one element.
    """
    first = next(iter(lists.values()))
    if not first or any(len(one) != len(first) for one in lists.values()):
        return False
    if not all(isinstance(one, OclTensor) for each in lists.values() for one in each):
        return False
    kind, device = first[0].dtype, first[0].memory.device
    if not (kind.is_floating_point and are_known(device, kind)):
        return False
    forms = [(one.size(), one.stride()) for one in first]
    for name, each in lists.items():
        if {one.memory.device for one in each} != {device}:
            return False
        types = {one.dtype for one in each}
        if name in single:
            if len(types) > 1 or not types <= NAMES.keys() or any(one.numel() > 1 for one in each):
                return False
        elif types != {kind} or [(one.size(), one.stride()) for one in each] != forms:
            return False
    if any(one.numel() > LARGEST for one in first):
        return False
    return all(_is_dense(*form) for form in forms) and not _overlap(lists, single)


def _overlap(lists: Lists, single: Sequence[str]) -> bool:
    """Return whether tensors at different indices share elements, or tensors partly overlap.

    Torch updates one tensor after the other and refuses some overlaps; a kernel has no such order.
    """
    ranges: dict[int, set[tuple[int, int, int]]] = {}
    for name, each in lists.items():
        for at, one in enumerate(each):
            if one.numel():
                place = -1 if name in single else at
                ranges.setdefault(id(one.memory), set()).add((*reach(one), place))
    for found in ranges.values():
        if len(found) > 1:
            in_order = sorted(found)
            for (_, end, _), (begin, _, _) in pairwise(in_order):
                if begin < end:
                    return True
    return False


def _packs(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Split tensors, as (index, size), into launches of at most `PACK` tensors and int elements."""
    found: list[list[int]] = []
    total = 0
    for at, size in sizes:
        if not found or len(found[-1]) == PACK or total + size > LARGEST:
            found.append([])
            total = 0
        found[-1].append(at)
        total += size
    return found


_is_dense = lru_cache(maxsize=1 << 12)(is_dense)


def each_of(
    body: str, lists: Lists, scalars: Mapping[str, float] | None = None,
    own: Mapping[str, Sequence[float]] | None = None, single: Sequence[str] = (),
) -> None:  # fmt: skip
    """Run OpenCL statements for each element of lists of tensors that `fit`.

    Args:
        body: OpenCL C statements over the names of lists and scalars.
        lists: Lists of tensors by name.
        scalars: Scalars by name, the same for all tensors.
        own: Lists of scalars by name, one value for each tensor.
        single: Names of the lists whose tensors have one element.
    """
    scalars, own = scalars or {}, own or {}
    first = next(iter(lists.values()))
    device, kind = first[0].memory.device, first[0].dtype
    number = SCALARS[kind]
    last = [number(one) for one in scalars.values()]
    singles = tuple((name, NAMES[lists[name][0].dtype]) for name in single)
    places = [at for at, one in enumerate(first) if one.numel()]
    for pack in _packs([(at, first[at].numel()) for at in places]):
        ready = _ready(
            device, body, kind, len(pack), tuple(lists), singles, tuple(scalars), tuple(own)
        )
        ends = np.cumsum([first[at].numel() for at in pack], dtype=np.int64)
        total = int(ends[-1])
        arguments: list[Any] = [int(end) for end in ends]
        for each in lists.values():
            for at in pack:
                arguments += (each[at].memory.buffer, each[at].storage_offset())
        for values in own.values():
            arguments += [number(values[at]) for at in pack]
        device.ask(ready, *in_groups(total), *arguments, *last)


@lru_cache(maxsize=1 << 10)
def _ready(
    device: Device, body: str, kind: torch.dtype, count: int, lists: tuple[str, ...],
    single: tuple[tuple[str, str], ...], scalars: tuple[str, ...], own: tuple[str, ...],
) -> Any:  # fmt: skip
    number = SCALARS[kind]
    types = (
        *[np.int32] * count, *(None, np.int64) * (count * len(lists)),
        *[number] * (count * len(own) + len(scalars)),
    )  # fmt: skip
    source = source_of(body, NAMES[kind], count, lists, single, scalars, own)
    return kernel_of(device, source, "together", types)


@cache
def source_of(
    body: str, kind: str, count: int, lists: tuple[str, ...],
    single: tuple[tuple[str, str], ...], scalars: tuple[str, ...], own: tuple[str, ...],
) -> str:  # fmt: skip
    """Return the kernel's source: each work item finds the tensor that its element belongs to."""
    types = dict(single)
    parameters = [f"const int end{at}" for at in range(count)]
    for name in lists:
        for at in range(count):
            parameters += [
                f"__global {types.get(name, 'T')}* {name}{at}",
                f"const long {name}_at{at}",
            ]
    parameters += [f"const T {name}{at}" for name in own for at in range(count)]
    parameters += [f"const T {name}" for name in scalars]
    chosen = []
    for at in range(count):
        takes = [f"p_{name} = {name}{at} + {name}_at{at};" for name in lists]
        takes += [f"{name} = {name}{at};" for name in own]
        begin = f" i = at - end{at - 1};" if at else " i = at;"
        head = f"if (at < end{at})" if at < count - 1 else ""
        chosen.append(f"{head} {{{begin} {' '.join(takes)} }}")
    names = "".join(f"#define {name} p_{name}[{0 if name in types else 'i'}]\n" for name in lists)
    pointers = "".join(f"  __global {types.get(name, 'T')}* p_{name};\n" for name in lists)
    numbers = "".join(f"  T {name};\n" for name in own)
    return f"""#define T {kind}
__kernel void together({", ".join(parameters)})
{{
  const int at = get_global_id(0);
  if (at >= end{count - 1}) return;
  int i;
{pointers}{numbers}  {" else ".join(chosen)}
{names}  {body}
}}
"""
