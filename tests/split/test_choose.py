"""How many replicas: measured on steps that count, and one unless more are clearly faster."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from cputrain import Split
from cputrain.split.balance.auto_replicas import MIN_GAIN, AutoReplicas, FixedShards


def measured(seconds, *, noise=0.0, seed=0, drift=0.0, counts=(2, 4, 8)):
    """What is chosen where a step takes so long with so many replicas."""
    told = []
    choice = AutoReplicas(list(counts), told.append)
    generator = random.Random(seed)
    for step in range(1000):
        sizes = choice.sizes(64, trains=True)
        if choice.chosen is not None:
            return told[0], step
        took = seconds[len(sizes)] * (1 + drift * step) * generator.uniform(1, 1 + noise)
        choice.record(sizes, took, [took] * len(sizes))
    raise AssertionError("nothing was chosen in 1000 steps")


def test_the_fastest_is_chosen_within_a_few_steps():
    found, steps = measured({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.5})
    assert (found.count, round(found.gain, 2)) == (4, 2.5)
    assert steps <= 40


def test_what_is_clearly_slower_is_tried_once():
    _, slower = measured({1: 1.0, 2: 2.0, 4: 2.0, 8: 2.0})
    _, faster = measured({1: 1.0, 2: 0.9, 4: 0.9, 8: 0.9})
    assert slower < faster / 2


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_taken_for_gain(seed):
    """No number is more than a little slower than what was chosen, whatever the noise."""
    seconds = {1: 1.0, 2: 1.02, 4: 1.0, 8: 1.3}
    found, _ = measured(seconds, noise=0.15, seed=seed)
    assert seconds[found.count] <= 1.02


@pytest.mark.parametrize("seed", range(5))
def test_a_clear_gain_is_found_in_noise_and_drift(seed):
    found, _ = measured({1: 1.0, 2: 0.7, 4: 0.5, 8: 0.9}, noise=0.1, drift=0.005, seed=seed)
    assert found.count == 4


def test_a_gain_of_less_than_three_percent_is_not_worth_it():
    assert measured({1: 1.0, 2: 0.98, 4: 1.0, 8: 1.0})[0].count == 1


def test_short_batches_and_evaluation_are_not_measured():
    choice = AutoReplicas([2], lambda _: None)
    assert choice.sizes(64, trains=True) == (64,)
    for _ in range(2):
        choice.record((64,), 1.0, [1.0])
    assert choice.sizes(64, trains=True) == (32, 32)
    assert choice.sizes(64, trains=False) == (64,)
    assert choice.sizes(10, trains=True) == (10,)
    choice.record((10,), 1.0, [1.0])
    assert choice.sizes(64, trains=True) == (32, 32)


def test_what_was_asked_for_is_taken():
    assert FixedShards([1.0] * 3).sizes(64, trains=True) == (21, 22, 21)
    assert FixedShards([3.0, 1.0]).sizes(64, trains=True) == (48, 16)
    assert FixedShards([1.0] * 3).sizes(2, trains=True) == (1, 1, 0)


def test_auto_comes_to_a_choice_on_the_scripts_own_steps():
    """The result is that of the whole batch all the while."""
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 8))
    split = Split(model)
    twin = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 8))
    twin.load_state_dict(model.state_dict())
    steps = 0
    while not split.chosen:
        steps += 1
        assert steps < 40
        x = torch.randn(48, 32)
        for one in (split, twin):
            one.zero_grad()
            one(x).square().mean().backward()
        for a, b in zip(split.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    count, gain = split.chosen
    assert count == 1 or gain >= MIN_GAIN
    divided = split.calls_divided
    split(x)
    assert split.calls_divided == divided + (count > 1)
    assert steps < 30


def test_without_a_second_core_there_is_nothing_to_choose():
    torch.set_num_threads(1)
    split = Split(nn.Linear(2, 2))
    split(torch.ones(8, 2)).sum().backward()
    assert split.calls_divided == 0


def test_of_calls_that_begin_before_a_backward_the_last_is_measured():
    """The time of an earlier one has the last one's in it, where the model is on a GPU."""
    model = nn.Linear(8, 2)
    split = Split(model, replicas=2)
    heard = []

    class Listens(FixedShards):
        needs_times = True

        def record(self, sizes, seconds, busy):
            heard.append((sizes, seconds, list(busy)))

    split(torch.randn(8, 8))
    split._split_dispatcher._choice = Listens([1.0, 1.0])
    for _ in range(3):
        outs = [split(torch.randn(size, 8)) for size in (8, 12)]
        with torch.no_grad():
            split(torch.randn(10, 8))
        sum(out.sum() for out in outs).backward()
    assert [sizes for sizes, _, _ in heard] == [(6, 6)] * 3
    assert all(0 < max(busy) <= seconds for _, seconds, busy in heard)
    out = split(torch.randn(8, 8))
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert len(heard) == 4
