"""Ranks with shares of their own learn what one process learns."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain.errors import UsageError
from cputrain.split import RankShare, rank_share
from tests.launch.programs import launch

WEIGHTED = str(Path(__file__).with_name("weighted.py"))


def told(done):
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda one: one["rank"])


def test_the_result_is_that_of_the_whole_batch(tmp_path):
    (alone,) = told(launch(tmp_path, "-q", "--nproc-per-node", "1", WEIGHTED, "1"))
    assert set(alone["had"]) == {24, 4}  # the last batch of an epoch is short
    for weights in ("1,1", "1,2,5"):
        count = weights.count(",") + 1
        every = told(launch(tmp_path, "-q", "--nproc-per-node", str(count), WEIGHTED, weights))
        assert len(every) == count
        for one in every:
            for ours, whole in zip(one["weights"], alone["weights"], strict=True):
                assert ours == pytest.approx(whole, rel=1e-10, abs=1e-12)
        had = zip(*(one["had"] for one in every), strict=True)
        assert [sum(parts) for parts in had] == alone["had"]
    assert [one["had"][0] for one in every] == [3, 6, 15]


def test_shares_follow_what_is_measured(tmp_path):
    """The second rank's step takes twice as long; then the first rank's does."""
    first, second = told(launch(tmp_path, "-q", "--nproc-per-node", "2", WEIGHTED, ""))
    assert first["began"] == second["began"]
    assert first["ended"] == second["ended"]
    assert first["began"][0] > first["began"][1]
    assert first["ended"][0] < first["ended"][1]


@settings(suppress_health_check=[HealthCheck.too_slow])  # drawing beside busy processes
@given(
    st.integers(1, 60), st.integers(1, 30), st.booleans(),
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5),
)  # fmt: skip
def test_each_sample_goes_to_one_rank(samples, batch, drop_last, weights):
    count = len(weights)
    shares = [RankShare(weights, rank) for rank in range(count)]
    if batch < count:
        with pytest.raises(UsageError, match="a sample for each rank"):
            shares[0].sampler(range(samples), batch)
        return
    every = [
        share.sampler(range(samples), batch, shuffle=True, seed=3, drop_last=drop_last)
        for share in shares
    ]
    assert len({len(one) for one in every}) == 1
    batches = list(zip(*every, strict=True))
    assert all(part for parts in batches for part in parts)
    whole = [list(chain(*parts)) for parts in batches]
    assert all(len(one) == batch for one in whole[:-1])
    flat = list(chain(*whole))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(3)).tolist()
    assert flat == order[: len(flat)]
    rest = samples % batch
    left = 0 if not rest else rest if drop_last or rest < count else 0
    assert len(flat) == samples - left


def test_a_process_alone_has_it_all():
    share = rank_share(weights=[3.0])
    assert share.weights == (1.0,)
    assert share.of(7) == (7,)


@pytest.mark.parametrize("weights", [[], [1.0, 2.0], [0.0], [float("nan")], [-1.0]])
def test_weights_that_are_none(weights):
    with pytest.raises(UsageError, match="weights must be a number above 0"):
        rank_share(weights=weights)
