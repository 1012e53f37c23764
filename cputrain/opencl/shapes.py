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


def require_apart(out: OclTensor, one: OclTensor) -> None:
    """Raise what torch raises for operators that write to an element and read it as another one."""
    if any(n > 1 and not step for n, step in zip(out.size(), out.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
    if not is_another_part(out, one) or not (
        is_dense(out.size(), out.stride()) and is_dense(one.size(), one.stride())
    ):
        return
    (begin, end), (other_begin, other_end) = _reach(out), _reach(one)
    if begin < other_end and other_begin < end and not out.size().numel() == 0:
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor "
            "refer to a single memory location. Please clone() the tensor before performing the "
            "operation."
        )


def _reach(one: OclTensor) -> tuple[int, int]:
    """Return the bytes of its memory between which a dense tensor lies."""
    begin = int(one.storage_offset()) * one.itemsize
    return begin, begin + one.numel() * one.itemsize
