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


def tensor_of_1_mib(number: int) -> torch.Tensor:
    """Return a float32 tensor of 1 MiB, filled with `number`."""
    import torch

    return torch.full((1 << 18,), number, dtype=torch.float32)


def tensor_of_16_kib(number: int) -> torch.Tensor:
    """Return a float32 tensor of 16 KiB, filled with `number`."""
    import torch

    return torch.full((1 << 12,), number, dtype=torch.float32)


def tensor_of_2_gib(number: int) -> torch.Tensor:
    """Return a float32 tensor of 2 GiB, filled with `number`."""
    import torch

    return torch.full((1 << 29,), number, dtype=torch.float32)


def incremented(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return a new array with 1 added to each element."""
    return array + 1


def sum_of_three(large: Any, number: int) -> float:
    """Return the sum of three elements of a tensor or array."""
    return float(large[0]) + float(large[number * 997 % len(large)]) + float(large[-1 - number])


def compute_10_us(number: int) -> int:
    """Compute for about 10 µs in Python and return the result."""
    total = number
    for step in range(130):
        total = (total * 31 + step) & 0xFFFF
    return total


def write_rows(numbers: Sequence[int], view: torch.Tensor, _seed: int = 0) -> None:
    """Fill `view` with the numbered rows, computing for about 100 µs in Python for each."""
    import torch

    for position, number in enumerate(numbers):
        value, row = number, bytearray(WIDTH)
        for step in range(1000):
            value = (value * 31 + step) & 0xFFFF
            row[step % WIDTH] = value & 0xFF
        view[position] = torch.frombuffer(row, dtype=torch.uint8)


def row_chunks(num_rows: int) -> list[range]:
    """Divide row numbers into chunks of the size that `cputrain.fill` would choose."""
    size = -(-num_rows // 1024)
    return [range(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]


def filled_rows(write: Callable[..., None], numbers: Sequence[int]) -> torch.Tensor:
    """Return a new tensor of the numbered rows, filled by `write`."""
    import torch

    chunk = torch.empty(len(numbers), WIDTH, dtype=torch.uint8)
    write(numbers, chunk)
    return chunk
