"""Statistics of timings against NumPy's, and the order of interleaved rounds."""

from __future__ import annotations

import math
import statistics
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import loss_difference, median_known, quantile, speedup_by_round

SECONDS = st.floats(1e-9, 1e9)
TIMINGS = st.lists(SECONDS, min_size=1, max_size=40)


@given(TIMINGS, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], fraction: float) -> None:
    assert quantile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)))


@given(TIMINGS)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(iter(values)) == pytest.approx(statistics.median(values))
    assert median_known([None, *values, None]) == median(values)


def test_nothing_known_has_no_median() -> None:
    assert median_known([None]) is None


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_a_speedup_is_a_ratio_within_a_round(rounds: list[tuple[float, float]]) -> None:
    reference_s, seconds = zip(*rounds, strict=True)
    speedup = speedup_by_round(reference_s, seconds)
    ratios = sorted(a / b for a, b in rounds)
    assert (speedup.lowest, speedup.highest) == (ratios[0], ratios[-1])
    assert speedup.median == pytest.approx(statistics.median(ratios))


def test_rounds_of_unequal_number_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        speedup_by_round([1.0, 2.0], [1.0])


@given(st.lists(st.integers(), unique=True, max_size=6), st.integers(0, 7))
def test_every_second_round_runs_in_reverse_order(sides: list[int], num_rounds: int) -> None:
    runs = list(interleaved(sides, num_rounds))
    for round_index in range(num_rounds):
        order = [side for index, side in runs if index == round_index]
        assert order == (sides[::-1] if round_index % 2 else sides)
    assert [index for index, _ in runs] == sorted(index for index, _ in runs)


@pytest.mark.parametrize(
    ("losses", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0, 9.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([math.nan], [math.nan], 0.0),
        ([math.nan], [1.0], 2.0),
        ([math.inf], [1.0], 2.0),
        ([], [1.0], None),
    ],
)
def test_losses_differ_relative_to_the_larger(
    losses: list[float], expected: list[float], difference: float | None
) -> None:
    assert loss_difference(losses, expected) == difference
