"""What tests on the device begin with."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("CPUTRAIN_TEST_APART"):
    from cputrain.opencl.device import devices

    for _one in devices():
        _one.shares_memory = False


if os.environ.get("CPUTRAIN_TEST_POISON"):
    from cputrain.opencl.device import Device

    Device.should_poison = True


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def forbidden(monkeypatch):
    """Without the CPU: what runs are kernels."""
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "error")


@pytest.fixture
def without_cumsum(monkeypatch):
    """Without the kernel of an operator that would otherwise lie on the device."""
    from cputrain.opencl import replay
    from cputrain.opencl.table import KERNELS

    monkeypatch.delitem(KERNELS, torch.ops.aten.cumsum.default)
    monkeypatch.setattr(replay, "_cache", {})
