"""Task functions of the pool benchmark.

Functions import torch only if they use it, so that a worker does not wait for an import that its
task does not need.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import numpy
    import torch

WIDTH = 64
"""Bytes in a row of the filled tensor."""


def mebibyte(number: int) -> torch.Tensor:
    """Return a float32 tensor of 1 MiB, filled with `number`."""
    import torch

    return torch.full((1 << 18,), number, dtype=torch.float32)


def page(number: int) -> torch.Tensor:
    """Return a float32 tensor of 16 KiB, filled with `number`."""
    import torch

    return torch.full((1 << 12,), number, dtype=torch.float32)


def two_gibibytes(number: int) -> torch.Tensor:
    """Return a float32 tensor of 2 GiB, filled with `number`."""
    import torch

    return torch.full((1 << 29,), number, dtype=torch.float32)


def incremented(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return a new array with all elements incremented."""
    return array + 1


def some_of(big: Any, number: int) -> float:
    """Return the sum of three elements of a tensor or array."""
    return float(big[0]) + float(big[number * 997 % len(big)]) + float(big[-1 - number])


def tiny(number: int) -> int:
    """Compute for about 10 µs in Python."""
    total = number
    for step in range(130):
        total = (total * 31 + step) & 0xFFFF
    return total


def write_rows(numbers: Sequence[int], view: torch.Tensor, _seed: int = 0) -> None:
    """Fill rows of a tensor, each with about 100 µs of Python."""
    import torch

    for place, number in enumerate(numbers):
        value, row = number, bytearray(WIDTH)
        for step in range(1000):
            value = (value * 31 + step) & 0xFFFF
            row[step % WIDTH] = value & 0xFF
        view[place] = torch.frombuffer(row, dtype=torch.uint8)


def parts(count: int) -> list[range]:
    """Return chunks of rows of the size that `fill` would choose."""
    size = -(-count // 1024)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def rows(write: Callable[..., None], numbers: Sequence[int]) -> torch.Tensor:
    """Return a chunk of rows as a new tensor."""
    import torch

    made = torch.empty(len(numbers), WIDTH, dtype=torch.uint8)
    write(numbers, made)
    return made
