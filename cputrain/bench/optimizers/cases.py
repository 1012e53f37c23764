"""Optimizers of the benchmark, and the tensor shapes that they update."""

from __future__ import annotations

from cputrain.errors import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Shape = tuple[int, int, float]

CASES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "sgd-decay": "SGD with weight decay",
    "sgd-momentum": "SGD with momentum",
    "adagrad": "Adagrad",
}

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"lr": 1e-3}),
    "adamw": ("AdamW", {"lr": 1e-3}),
    "sgd": ("SGD", {"lr": 1e-3}),
    "sgd-decay": ("SGD", {"lr": 1e-3, "weight_decay": 1e-2}),
    "sgd-momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "adagrad": ("Adagrad", {"lr": 1e-3}),
}
"""Class in torch.optim and its arguments, by case."""

NUM_TENSORS = (1, 2, 3, 4, 8, 12, 20, 30, 100, 400, 1000)

NUM_ELEMENTS = (1, 64, 1000, 10_000, 30_000, 100_000, 1_000_000, 10_000_000)
"""Elements of each tensor."""

MOST_ELEMENTS = 20_000_000
"""Maximum number of elements of all tensors; more need memory, but behave alike in caches."""

TABLE_ROWS, TABLE_WIDTH = 60_000, 32

TOUCHED = (0.001, 0.01, 0.24, 1.0)
"""Fractions of an embedding table's rows with a nonzero gradient."""


def named(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named cases, by default all.

    Raises:
        NotFound: There is no case of that name.
    """
    for name in names:
        if name not in CASES:
            raise NotFound(
                f"the optimizer {name}", f"must be one of {', '.join(CASES)}",
                do="Leave it out for all of them.",
            )  # fmt: skip
    return tuple(names) or tuple(CASES)


def shapes(*, quick: bool) -> list[Shape]:
    """Return the cells of a sweep: number of tensors, elements of each, fraction of rows."""
    if quick:
        return [(1, 64, 1.0), (30, 1000, 1.0), (1, 64 * TABLE_WIDTH, 0.01)]
    sweep = [
        (count, size, 1.0)
        for size in NUM_ELEMENTS
        for count in NUM_TENSORS
        if count * size <= MOST_ELEMENTS
    ]
    return [*sweep, *((1, TABLE_ROWS * TABLE_WIDTH, part) for part in TOUCHED)]
