"""Turns: what is faster wins, what is not loses soon, in noise and on a machine that slows down."""

from __future__ import annotations

import random

import pytest

from cputrain.learn.allowance import MAX_STEPS, SHARE, Allowance
from cputrain.learn.turns import Turns

STEP_S = 0.1


def played(
    speedup: float, seed: int, *, noise: float = 0.0, drift: float = 0.0, outliers: float = 0.0
) -> tuple[bool, int, float]:
    """Whether a candidate of a known speed-up wins, after how many steps, and what it has cost.

    Args:
        speedup: Of the candidate.
        seed: Of the noise.
        noise: Standard deviation of a step's time, relative.
        drift: Growth of the time of a step from one to the next, relative.
        outliers: Share of steps that take three times as long.
    """
    draw = random.Random(seed)
    turns, count, lost_s = Turns(STEP_S), 0, 0.0
    while True:
        usual_s = STEP_S * (1 + drift * count)
        disturbed_s = usual_s * draw.lognormvariate(0, noise)
        if draw.random() < outliers:
            disturbed_s *= 3
        if turns.is_candidate:
            lost_s += usual_s / speedup - usual_s
            disturbed_s /= speedup
        verdict = turns.add(disturbed_s)
        count += 1
        assert count < 1000
        if verdict is not None:
            return verdict, count, lost_s / STEP_S


@pytest.mark.parametrize("speedup", [1.05, 1.1, 1.3, 2, 10])
@pytest.mark.parametrize("drift", [0, 0.002, -0.002])
def test_what_is_faster_wins(speedup: float, drift: float) -> None:
    wins = [played(speedup, seed, noise=0.005, drift=drift)[0] for seed in range(50)]
    assert all(wins)


@pytest.mark.parametrize("speedup", [0.1, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("drift", [0, 0.002, -0.002])
def test_what_is_slower_loses_at_a_small_cost(speedup: float, drift: float) -> None:
    for seed in range(50):
        wins, _, lost = played(speedup, seed, noise=0.005, drift=drift)
        assert not wins
        assert lost <= 3.5 * (1 / speedup - 1) + 0.3  # a few of its own steps


def test_few_that_are_as_fast_win() -> None:
    for noise, outliers in ((0.01, 0), (0.05, 0), (0.1, 0.05)):
        wins = [played(1, seed, noise=noise, outliers=outliers)[0] for seed in range(300)]
        assert sum(wins) < 0.15 * len(wins), (noise, outliers)


def test_what_is_much_faster_wins_on_a_noisy_machine() -> None:
    wins = [played(1.5, seed, noise=0.1, outliers=0.03)[0] for seed in range(300)]
    assert sum(wins) > 0.9 * len(wins)


def test_one_long_step_ends_nothing() -> None:
    turns = Turns(STEP_S)
    while not turns.is_candidate:
        assert turns.add(STEP_S) is None
    assert turns.add(STEP_S) is None  # not timed
    assert turns.add(10 * STEP_S) is None  # a validation
    assert turns.add(0.9 * STEP_S) is None


def test_looking_costs_a_share_of_the_first_steps_and_of_what_it_saves() -> None:
    account = Allowance(STEP_S)
    for _ in range(5 * MAX_STEPS):
        account.add_step(0.0)
    assert account.left_s == pytest.approx(SHARE * MAX_STEPS * STEP_S)
    assert account.is_spent
    account.add_excess(1.0, STEP_S, is_timed=False)  # it was compiled, or proved
    assert account.left_s == pytest.approx(SHARE * MAX_STEPS * STEP_S - 0.9)
    before_s = account.left_s
    account.add_excess(100.0, STEP_S, is_timed=True)  # a validation fell into it
    assert account.left_s == pytest.approx(before_s - STEP_S)
    account.add_excess(0.04, STEP_S, is_timed=True)  # a faster candidate gives time back
    assert account.left_s == pytest.approx(before_s - STEP_S + 0.06)
    account.add_step(0.02)
    assert not account.is_spent
    assert account.left_s == pytest.approx(before_s - STEP_S + 0.06 + 0.01)
