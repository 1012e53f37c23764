"""Interleaved rounds: A B, B A, A B, …, so that throttling and warm-up affect all sides alike."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import TypeVar

    Side = TypeVar("Side")


def round_order(sides: Collection[Side], round_index: int) -> list[Side]:
    """Return the order of a round, counted from 0: every second round runs in reverse order."""
    return list(sides) if round_index % 2 == 0 else list(sides)[::-1]


def interleaved(sides: Collection[Side], num_rounds: int) -> Iterator[tuple[int, Side]]:
    """Yield `(round, side)` for all rounds, each in its `round_order`."""
    for round_index in range(num_rounds):
        for side in round_order(sides, round_index):
            yield round_index, side
