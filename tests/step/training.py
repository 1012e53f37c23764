"""Training by a loop or by `Step`, in which something may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import optim

import cputrain
from tests.step.test_recorded import recorded_steps

NUM_STEPS = 24


def train(
    make: Callable[[], Any],
    change: Callable[[Any, int], Any] = lambda *_: None,
    *,
    look: Callable[[Any], list[Any]] = lambda _: [],
    in_steps: bool = False,
    wait: Callable[[], object] = lambda: None,
) -> tuple[list[Any], Any]:
    """Return losses with what `look` returns after each step, and the `Step` if there is one.

    Args:
        make: Returns the model.
        change: Is called before each step, with the model and the number of the step.
        look: Returns what else of the model is compared.
        in_steps: Whether `Step` takes the steps.
        wait: Is called after each step.
    """
    torch.manual_seed(0)
    model, loss_fn = make(), F.cross_entropy
    optimizer = optim.SGD(model.parameters(), 0.02, momentum=0.5)
    whole = cputrain.Step(model, loss_fn, optimizer) if in_steps else None
    seen: list[Any] = []
    for step in range(NUM_STEPS):
        change(model, step)
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        if whole is None:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        else:
            loss = whole(x, y)
            whole.wait()
        wait()
        seen += [loss.item(), *look(model)]
    return seen, whole


def trained(in_steps: bool, *args: Any, **options: Any) -> tuple[list[Any], int, str]:
    """Train with steps that may be compiled; return also how many were, and why not all."""
    if in_steps:
        seen, step = train(*args, **options, in_steps=True)
        return seen, step.num_compiled, step.eager_reason
    with recorded_steps() as steps:
        seen, _ = train(*args, **options, wait=steps.recorder.wait)
        return seen, steps.recorder.num_compiled, steps.recorder.end_reason
