"""What pools are given to do.

torch is imported by those that use it: a worker that has to import what a task is made of should
not wait for more than the task needs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import numpy
    import torch

WIDTH = 64
"""Bytes of a row of the tensor that is filled."""


def mebibyte(number: int) -> torch.Tensor:
    """A tensor of 1 MiB, each element of it the number."""
    import torch

    return torch.full((1 << 18,), number, dtype=torch.float32)


def page(number: int) -> torch.Tensor:
    """The same with 16 KiB, where nothing is said of speed."""
    import torch

    return torch.full((1 << 12,), number, dtype=torch.float32)


def two_gibibytes(number: int) -> torch.Tensor:
    """The same with 2 GiB."""
    import torch

    return torch.full((1 << 29,), number, dtype=torch.float32)


def incremented(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Another array of the same size."""
    return array + 1


def some_of(big: Any, number: int) -> float:
    """A few elements of a tensor, or of an array."""
    return float(big[0]) + float(big[number * 997 % len(big)]) + float(big[-1 - number])


def tiny(number: int) -> int:
    """Some 10 µs of Python."""
    total = number
    for step in range(130):
        total = (total * 31 + step) & 0xFFFF
    return total


def write_rows(numbers: Sequence[int], view: torch.Tensor, _seed: int = 0) -> None:
    """Some 100 µs of Python for each row."""
    import torch

    for place, number in enumerate(numbers):
        value, row = number, bytearray(WIDTH)
        for step in range(1000):
            value = (value * 31 + step) & 0xFFFF
            row[step % WIDTH] = value & 0xFF
        view[place] = torch.frombuffer(row, dtype=torch.uint8)


def parts(count: int) -> list[range]:
    """As many rows in a part as `fill` would choose."""
    size = -(-count // 1024)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def rows(write: Callable[..., None], numbers: Sequence[int]) -> torch.Tensor:
    """A part as a tensor of its own."""
    import torch

    made = torch.empty(len(numbers), WIDTH, dtype=torch.uint8)
    write(numbers, made)
    return made
