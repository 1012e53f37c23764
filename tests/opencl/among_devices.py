"""A batch divided between an OpenCL device and the CPU gives what the CPU gives."""

from __future__ import annotations

import copy

import pytest
import torch

import cputrain.opencl  # noqa: F401
from cputrain import Split
from tests.split.models import MODELS
from tests.split.test_exact import farthest


@pytest.fixture
def _exactly():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_exactly")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("replicas", "shares"), [(1, (1, 2)), (2, (3, 1))])
def test_gradients_are_those_of_the_whole_batch(kind, replicas, shares):
    make, batch = MODELS[kind]
    model = make()
    split = Split(copy.deepcopy(model), ("ocl", "cpu"), replicas, shares)
    for _ in range(3):
        assert farthest(model, split, batch(10)) <= 1e-12
    assert split.why_not == ""
    assert split.calls_divided == 3
