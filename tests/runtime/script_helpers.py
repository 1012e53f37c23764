"""What scripts have beside their own file: functions and values in a module, which may change."""

from __future__ import annotations

from torch import Tensor

FACTOR = 1.0


def say(x: Tensor) -> Tensor:
    print("said")
    return x


def scale(x: Tensor) -> Tensor:
    return x * FACTOR
