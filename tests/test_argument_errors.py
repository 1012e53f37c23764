"""A wrong argument raises the same type everywhere: ValueError, and TypeError for a wrong type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import cputrain
from cputrain.errors import ArgumentTypeError, UsageError
from cputrain.split import rank_share

MODEL = torch.nn.Linear(2, 3)
ROWS = list(range(4))


def with_loader(**arguments: Any) -> object:
    return cputrain.DataLoader(ROWS, **arguments)  # type: ignore[arg-type]


CALLS: dict[str, tuple[Callable[[Any], object], object]] = {
    "processes": (lambda value: cputrain.Pool(value), "many"),
    "timeout": (lambda value: cputrain.Pool(1, timeout=value), "soon"),
    "retries": (lambda value: cputrain.Pool(1, retries=value), 1.5),
    "context": (lambda value: cputrain.Pool(1, context=value), 3),
    "fn": (lambda value: cputrain.fill(torch.zeros(3), value), 3),
    "out": (lambda value: cputrain.fill(value, print), "rows"),
    "resume": (lambda value: cputrain.fill(torch.zeros(3), print, resume=value), [True] * 3),
    "model": (lambda value: cputrain.Split(value), "resnet18"),
    "replicas": (lambda value: cputrain.Split(MODEL, replicas=value), 2.5),
    "devices": (lambda value: cputrain.Split(MODEL, value), 5),
    "shares": (lambda value: cputrain.Split(MODEL, replicas=2, shares=value), 5),
    "weights": (lambda value: rank_share(weights=value), 5),
    "cache_bytes": (lambda value: with_loader(cache="memory", cache_bytes=value), "8 GiB"),
    "load_state_dict(state)": (lambda value: with_loader().load_state_dict(value), [1]),
    "the argument threads": (lambda value: cputrain.setup(threads=value), 1.5),
}
"""Call with an argument, and a value of a wrong type, by the parameter's name."""

VALUES: dict[str, object] = {
    "timeout": -1, "retries": -1, "context": "thread", "out": torch.tensor(1.0),
    "resume": torch.zeros(2), "replicas": 0, "devices": "nosuch", "shares": (1, 2, 3),
    "weights": (1, 2, 3), "cache_bytes": 0, "load_state_dict(state)": {"version": 99},
    "the argument threads": "many",
}  # fmt: skip
"""Values of a right type that break the rule."""


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_a_type_error(name: str) -> None:
    call, value = CALLS[name]
    with pytest.raises(ArgumentTypeError) as caught:
        call(value)
    assert caught.value.parameter == name
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_a_value_error(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        CALLS[name][0](VALUES[name])
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", [object(), np.zeros(3), {"a": 1}, b"x", 1 + 2j], ids=type)
def test_no_value_gives_another_exception(name: str, value: object) -> None:
    try:
        found = CALLS[name][0](value)
    except (TypeError, ValueError) as error:
        if not isinstance(error, UsageError):  # those of multiprocessing.Pool
            assert name in ("processes", "retries")
    else:  # an array and a dict are a dataset of rows to fill
        assert name in ("out", "resume"), found
