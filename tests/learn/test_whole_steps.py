"""Whole steps end with the optimizer that steps least often."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from cputrain.learn.whole_steps import WholeSteps


class Optimizer(SimpleNamespace):
    """Stands for an optimizer: only its identity counts."""

    __hash__ = object.__hash__


def ends(steps: WholeSteps, optimizers: dict[str, Any], order: str) -> str:
    """Which of these steps end whole ones, as 1 and 0."""
    return "".join(str(int(steps.ends_with(optimizers[name]))) for name in order)


@pytest.mark.parametrize(
    ("order", "per_step"),
    [("a", 1), ("ab", 2), ("ba", 2), ("aaaaab", 6), ("baaaaa", 6), ("aabaac", 6)],
)
def test_the_end_is_found(order: str, per_step: int) -> None:
    optimizers = {name: Optimizer() for name in order}
    steps = WholeSteps()
    ends(steps, optimizers, order * 12)
    assert steps.is_known
    found = ends(steps, optimizers, order * 10)
    assert found.count("1") == 10 * len(order) // per_step
    assert {len(part) for part in found.split("1")[1:-1]} == {per_step - 1}


def test_a_new_optimizer_begins_anew() -> None:
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    steps = WholeSteps()
    assert "1" in ends(steps, optimizers, "a" * 30)
    assert ends(steps, optimizers, "b") == "0"
    assert not steps.is_known
    assert "1" in ends(steps, optimizers, "b" * 30)


def test_an_optimizer_that_is_gone_is_not_waited_for() -> None:
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    steps = WholeSteps()
    ends(steps, optimizers, "aab" * 10)
    del optimizers["b"]
    gc.collect()
    assert not steps.is_known
    assert "1" in ends(steps, optimizers, "a" * 30)
