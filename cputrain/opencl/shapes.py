"""Shapes and strides: contiguity, broadcasting, overlap."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.tensor import OclTensor


def contiguous(size: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    stride, step = [0] * len(size), 1
    for dim in range(len(size) - 1, -1, -1):
        stride[dim] = step
        step *= max(1, size[dim])
    return stride


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether a tensor has no gaps and no overlap, in any order of dimensions."""
    expected = 1
    for step, n in sorted(zip(stride, size, strict=True)):
        if n == 1:
            continue
        if step != expected:
            return False
        expected *= n
    return True


def broadcast(sizes: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the broadcast size, or None if the sizes do not match (torch will raise)."""
    found: list[int] = []
    for size in sizes:
        longer, shorter = (found, size) if len(found) >= len(size) else (list(size), found)
        merged = list(longer)
        for place, n in enumerate(shorter, len(longer) - len(shorter)):
            if merged[place] == 1:
                merged[place] = n
            elif n not in (1, merged[place]):
                return None
        found = merged
    return found


def is_another_part(out: OclTensor, one: OclTensor) -> bool:
    """Return whether `one` shares the memory of `out` without being the same view of it."""
    return one.memory is out.memory and (
        one.dtype is not out.dtype
        or one.storage_offset() != out.storage_offset()
        or one.stride() != out.stride()
        or one.size() != out.size()
    )


def is_written_once(out: OclTensor) -> bool:
    """Return whether no two indices share an element, as they do in an expanded tensor."""
    return all(step or n == 1 for n, step in zip(out.size(), out.stride(), strict=True))


def reach(one: OclTensor) -> tuple[int, int]:
    """Return the byte range of a dense tensor in its memory, as begin and end."""
    begin = int(one.storage_offset()) * one.itemsize
    return begin, begin + one.numel() * one.itemsize
