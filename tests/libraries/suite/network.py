"""The tests of somebody's project: some pass, some fail, one is skipped."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = torch.randn(32, 4)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    return model, x


def test_it_learns(trained):
    model, x = trained
    assert nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item() < 0.5


@settings(max_examples=20, deadline=None, database=None, derandomize=True)
@given(st.integers(1, 6), st.floats(-2, 2, width=32))
def test_it_takes_any_batch(trained, size, value):
    model, _ = trained
    assert model(torch.full((size, 4), value)).shape == (size, 1)


@settings(max_examples=50, deadline=None, database=None, derandomize=True)
@given(st.integers(1, 100))
def test_a_wrong_belief(trained, size):
    assert size < 7


def test_a_wrong_shape_fails(trained):
    model, _ = trained
    model(torch.ones(2, 5))


def test_it_warns(trained, recwarn):
    warnings.warn("careful", UserWarning, stacklevel=1)
    assert len(recwarn) == 1
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trained[0](torch.ones(2, 5))


def test_output(capfd):
    print("seen")
    assert capfd.readouterr().out == "seen\n"


@pytest.mark.skip(reason="not today")
def test_later():
    raise AssertionError
