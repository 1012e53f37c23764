"""Settings that are switched between steps: training goes on as it would without them."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from cputrain.learn.switches import ChannelsLastSwitch, ReplicasSwitch, StepSwitch, switch_of
from cputrain.runtime.fused import FusedOptimizers

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), 1e-3),
    "adamw, amsgrad": lambda model: torch.optim.AdamW(model.parameters(), 1e-3, amsgrad=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 1e-2),
    "fused": lambda model: torch.optim.Adam(model.parameters(), 1e-3, fused=True),
    "foreach": lambda model: torch.optim.RMSprop(model.parameters(), 1e-3, foreach=True),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.2), nn.Dropout(0.2),
        nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 4),
    )  # fmt: skip


def losses(
    optimizer_name: str,
    before_step: Callable[[int], None],
    *,
    num_steps: int = 16,
    set_to_none: bool = True,
) -> list[float]:
    """The losses of a training, with something done before each step."""
    model = network()
    optimizer = OPTIMIZERS[optimizer_name](model)
    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(8) % 4
    found = []
    for step in range(num_steps):
        before_step(step)
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = nn.functional.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@contextmanager
def switched(name: str, value: object) -> Iterator[StepSwitch]:
    """A setting that can be switched, with fused optimizers beside it."""
    fused = FusedOptimizers(torch)
    switch = switch_of(name, torch, value)
    assert switch is not None
    try:
        yield switch
    finally:
        switch.applied.undo()
        fused.undo()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("seed", range(2))
def test_losses_are_the_same_however_memory_formats_are_switched(
    optimizer: str, seed: int, set_to_none: bool
) -> None:
    expected = losses(optimizer, lambda _: None, set_to_none=set_to_none)
    draw = random.Random(seed)
    values = []
    with switched("channels_last", value=False) as switch:

        def before_step(step: int) -> None:
            if step and draw.random() < 0.5:
                values.append(draw.choice(["on", "off"]))
                switch.use(values[-1])
                assert switch.value == values[-1]

        assert losses(optimizer, before_step, set_to_none=set_to_none) == pytest.approx(
            expected, rel=2e-4
        )
    assert {"on", "off"} <= set(values)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated:DeprecationWarning")
def test_memory_formats_are_a_candidate_only_of_convolutions() -> None:
    images = torch.randn(2, 3, 12, 12)
    with switched("channels_last", value=False) as switch:
        assert isinstance(switch, ChannelsLastSwitch)
        assert switch.candidates() == []  # no model was called
        nn.Linear(12, 12)(images)
        assert switch.candidates() == []
        model = network()
        model(images)
        assert switch.candidates() == ["on"]
        switch.use("on")
        assert not model[0].weight.is_contiguous()  # type: ignore[union-attr, operator, index]
        assert switch.candidates() == ["off"]
        later = network()
        later(images)
        assert not later[0].weight.is_contiguous()  # type: ignore[union-attr, operator, index]
        switch.use("off")
        assert model[0].weight.is_contiguous()  # type: ignore[union-attr, operator, index]
        torch.jit.trace(model.eval(), images)  # takes the model as it is from then on
        del later
        gc.collect()
        assert switch.candidates() == []


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="needs two threads")
def test_losses_are_the_same_however_replicas_are_switched() -> None:
    expected = losses("sgd", lambda _: None, num_steps=24)
    with switched("replicas", None) as switch:
        assert isinstance(switch, ReplicasSwitch)
        assert switch.value == "1"
        assert "2" in switch.candidates()
        before = threading.active_count()

        def before_step(step: int) -> None:
            if step % 4 == 0:
                switch.use("2" if step % 8 else "1")

        assert losses("sgd", before_step, num_steps=24) == pytest.approx(expected, rel=2e-4)
        assert "divided among 2 replicas" in switch.applied.describe()
        switch.use("1")
        assert switch.applied.describe() == ""
        switch.discard()
        deadline = time.monotonic() + 20
        while threading.active_count() > before:  # threads end once their replicas are collected
            gc.collect()
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_threads_are_halved() -> None:
    before = torch.get_num_threads()
    with switched("threads", before) as switch:
        torch.set_num_threads(8)
        assert switch.candidates() == ["4", "2", "1"]
        switch.use("2")
        assert (switch.value, torch.get_num_threads()) == ("2", 2)
        assert switch.candidates() == ["1"]
    torch.set_num_threads(before)


def test_what_cannot_be_switched_is_left_to_the_plan() -> None:
    assert switch_of("allocator", torch, "default") is None
    assert switch_of("replicas", torch, "auto") is None
