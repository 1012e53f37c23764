"""What tests on the device begin with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def forbidden(monkeypatch):
    """Without the CPU: what runs are kernels."""
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "error")
