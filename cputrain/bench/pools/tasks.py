"""What pools are given to do.

torch is imported by those that use it: a worker that has to import what a task is made of should
not wait for more than the task needs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch


def mebibyte(number: int) -> torch.Tensor:
    """A tensor of 1 MiB, each element of it the number."""
    import torch

    return torch.full((1 << 18,), number, dtype=torch.float32)


def page(number: int) -> torch.Tensor:
    """The same with 16 KiB, where nothing is said of speed."""
    import torch

    return torch.full((1 << 12,), number, dtype=torch.float32)


def some_of(big: Any, number: int) -> float:
    """A few elements of a tensor, or of an array."""
    return float(big[0]) + float(big[number * 997 % len(big)]) + float(big[-1 - number])


def tiny(number: int) -> int:
    """Some 10 µs of Python."""
    total = number
    for step in range(130):
        total = (total * 31 + step) & 0xFFFF
    return total
