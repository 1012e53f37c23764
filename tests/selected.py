"""Which cases of a parametrized test `make test` runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def cases(names: Iterable[str], short: Iterable[str]) -> list[Any]:
    """Return parameters by name; those that are not among `short` run in `make test-all` only."""
    kept = set(short)
    return [pytest.param(name, marks=[pytest.mark.long] * (name not in kept)) for name in names]


def some(values: Iterable[Any], most: int) -> list[Any]:
    """Return parameters, of which `make test` runs `most` that are spread over all of them."""
    listed = list(values)
    kept = {number * len(listed) // most for number in range(most)}
    return [
        pytest.param(value, marks=[pytest.mark.long] * (number not in kept))
        for number, value in enumerate(listed)
    ]


def mark_combinations(items: Iterable[pytest.Item]) -> None:
    """Mark combinations of parameters `long`, except as few as have each value of each parameter.

    A test of 3 kinds by 4 sizes has 12 cases, of which 4 run in `make test`.
    """
    functions: dict[Any, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and len(item.callspec.params) > 1
            and not item.get_closest_marker("long")
        ):
            functions[item.path, item.originalname].append(item)
    for function in functions.values():
        values = [
            frozenset((name, id(value)) for name, value in item.callspec.params.items())
            for item in function
        ]
        kept = set(_covering(values))
        for number, item in enumerate(function):
            if number not in kept:
                item.add_marker("long")


def _covering(values: Sequence[frozenset[Any]]) -> Iterable[int]:
    """Yield the indices of few sets that have together what all have."""
    left = frozenset[Any]().union(*values)
    while left:
        best = max(range(len(values)), key=lambda number: len(values[number] & left))
        left -= values[best]
        yield best


def selected(request: pytest.FixtureRequest, names: Iterable[str], file: str) -> list[str]:
    """Return the names that tests of a file, or those that use the fixture, have as `name`."""
    wanted = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and str(item.path) == file
        and request.fixturename in {None, *item.fixturenames}
        and hasattr(item, "callspec")
    }
    return [name for name in names if name in wanted]
