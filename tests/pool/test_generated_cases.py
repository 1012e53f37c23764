"""Pools in generated cases: nobody can tell ours from multiprocessing's.

Each run draws new cases. `CASES_SEED=N python -m pytest tests/pool/test_generated_cases.py` draws
those of a run again; its number is a part of every failure.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cputrain import Pool
from tests.pool.functions import METHODS
from tests.pool.pool_cases import Case, endless, generate, observe, reduce

SEED = int(os.environ.get("CASES_SEED") or random.SystemRandom().randrange(1 << 32))

CASES = {"fork": 100, "forkserver": 30, "spawn": 30}

MORE = {"fork": 400, "forkserver": 100, "spawn": 100}
"""Where the cases of `make test-all` end; they begin after `CASES`."""

pytestmark = pytest.mark.usefixtures("in_time")


@pytest.fixture(scope="module", params=METHODS)
def pools(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, Any]]:
    method = request.param
    theirs = multiprocessing.get_context(method).Pool(2)
    with theirs, Pool(2, context=method) as ours:
        yield method, theirs, ours


def test_both_pools_do_the_same(pools: tuple[str, Any, Any]) -> None:
    _assert_same(pools, range(CASES[pools[0]]))


@pytest.mark.long
def test_both_pools_do_the_same_in_more_cases(pools: tuple[str, Any, Any]) -> None:
    _assert_same(pools, range(CASES[pools[0]], MORE[pools[0]]))


def _assert_same(pools: tuple[str, Any, Any], numbers: range) -> None:
    method, theirs, ours = pools

    def differs(case: Case) -> bool:
        return observe(case, theirs) != observe(case, ours)

    for number in numbers:
        case = generate(f"{SEED}-{method}-{number}")
        if differs(case):
            case = reduce(case, differs)
            pytest.fail(
                f"CASES_SEED={SEED}, case {number} of {method}:\n{case}\n"
                f"multiprocessing: {observe(case, theirs)}\ncputrain: {observe(case, ours)}",
                pytrace=False,
            )


def test_items_without_end(pools: tuple[str, Any, Any]) -> None:
    method, _, ours = pools
    for number in range(20):
        got, expected = endless(ours, f"{SEED}-{number}")
        assert got == expected, f"CASES_SEED={SEED}, case {number} of {method}"
