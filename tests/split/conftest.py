"""What every test of a divided batch begins with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    kind, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(kind)
    torch.set_num_threads(threads)


@pytest.fixture
def exactly():
    """In float64, so that a difference is a fault."""
    torch.set_default_dtype(torch.float64)
