"""Forms of tensors, and how they go together."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.tensor import OclTensor


def contiguous(size: Sequence[int]) -> list[int]:
    """The strides of a tensor without gaps, the last dimension innermost."""
    stride, step = [0] * len(size), 1
    for dim in range(len(size) - 1, -1, -1):
        stride[dim] = step
        step *= max(1, size[dim])
    return stride


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor fills its part of the memory, in whatever order."""
    expected = 1
    for step, n in sorted(zip(stride, size, strict=True)):
        if n == 1:
            continue
        if step != expected:
            return False
        expected *= n
    return True


def broadcast(sizes: Sequence[Sequence[int]]) -> list[int] | None:
    """The size of all together; None where they do not go together, as torch will say."""
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
    """Whether it is in the same memory, and not the same elements in the same places."""
    return one.memory is out.memory and (
        one.dtype is not out.dtype
        or one.storage_offset() != out.storage_offset()
        or one.stride() != out.stride()
        or one.size() != out.size()
    )


def is_written_once(out: OclTensor) -> bool:
    """Whether no element is in several places, as those of an expanded tensor are."""
    return all(step or n == 1 for n, step in zip(out.size(), out.stride(), strict=True))


def reach(one: OclTensor) -> tuple[int, int]:
    """Return the first byte of a dense tensor in its memory, and the one behind its last."""
    begin = int(one.storage_offset()) * one.itemsize
    return begin, begin + one.numel() * one.itemsize
