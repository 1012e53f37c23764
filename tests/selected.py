"""Which cases of a parametrized test run, for fixtures that prepare all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def cases(names: Iterable[str], short: Iterable[str]) -> list[Any]:
    """Return parameters by name; those that are not among `short` run in `make test-all` only."""
    kept = set(short)
    return [pytest.param(name, marks=[pytest.mark.long] * (name not in kept)) for name in names]


def selected(request: pytest.FixtureRequest, names: Iterable[str], file: str) -> list[str]:
    """Return the names that a selected test of a file has as its parameter `name`."""
    wanted = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and str(item.path) == file
        and hasattr(item, "callspec")
    }
    return [name for name in names if name in wanted]
