"""Interleaved rounds: A B, B A, A B, …, so that throttling and warm-up affect all sides alike."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import TypeVar

    Side = TypeVar("Side")


def interleaved(sides: Collection[Side], num_rounds: int) -> Iterator[tuple[int, Side]]:
    """Yield `(round, side)`, rounds counted from 0; every second round runs in reverse order."""
    order = list(sides)
    for round_index in range(num_rounds):
        for side in order if round_index % 2 == 0 else reversed(order):
            yield round_index, side
