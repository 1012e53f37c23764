"""Optimizers of the benchmark, and the tensor shapes that they update."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Shape = tuple[int, int, float]
    """Number of tensors, elements of each, and fraction of rows with a nonzero gradient."""

CASES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "sgd-decay": "SGD with weight decay",
    "sgd-momentum": "SGD with momentum",
    "adagrad": "Adagrad",
}
"""Title of each optimizer."""

MIN_SPEEDUP = 0.98
"""Speed-up over torch below which a cell is measured again, and listed under its table."""

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"lr": 1e-3}),
    "adamw": ("AdamW", {"lr": 1e-3}),
    "sgd": ("SGD", {"lr": 1e-3}),
    "sgd-decay": ("SGD", {"lr": 1e-3, "weight_decay": 1e-2}),
    "sgd-momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "adagrad": ("Adagrad", {"lr": 1e-3}),
}
"""Class name in torch.optim and arguments, by key of `CASES`."""

NUM_TENSORS = (1, 2, 3, 4, 8, 12, 20, 30, 100, 400, 1000)
"""Numbers of tensors in the sweep."""

NUM_ELEMENTS = (1, 64, 1000, 10_000, 30_000, 100_000, 1_000_000, 10_000_000)
"""Elements of each tensor in the sweep."""

MAX_ELEMENTS = 20_000_000
"""Maximum number of elements in all tensors; larger totals would only need more memory."""

TABLE_ROWS, TABLE_WIDTH = 60_000, 32
"""Shape of the embedding table."""

TOUCHED_FRACTIONS = (0.001, 0.01, 0.24, 1.0)
"""Fractions of an embedding table's rows with a nonzero gradient."""


def shapes(*, quick: bool) -> list[Shape]:
    """Return the tensor shapes of the sweep; with `quick`, three small ones."""
    if quick:
        return [(1, 64, 1.0), (30, 1000, 1.0), (1, 64 * TABLE_WIDTH, 0.01)]
    sweep = [
        (count, size, 1.0)
        for size in NUM_ELEMENTS
        for count in NUM_TENSORS
        if count * size <= MAX_ELEMENTS
    ]
    return [*sweep, *((1, TABLE_ROWS * TABLE_WIDTH, part) for part in TOUCHED_FRACTIONS)]
