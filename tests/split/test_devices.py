"""A batch divided among devices: the tests in among_devices.py, in a process of their own.

Autograd starts a thread for each kind of device with the first backward of a process, and a device
that is there only later has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selected import some


def test_among_devices(pytestconfig):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-m", pytestconfig.option.markexpr, str(Path(__file__).with_name("among_devices.py"))],
        capture_output=True, text=True, timeout=600, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


ENDS = """
import sys, time
from tests.split import other_device
other_device.begin()
import torch
from torch import nn
from cputrain import Split

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.03 * (x.device.type == "cpu"))
        return x

sys.setswitchinterval(1)  # nobody is given the lock but by who waits
model = nn.Sequential(nn.Linear(8, 8), Slow(), nn.Linear(8, 2)).to("other")
split = Split(model, ("other", "cpu"), shares=(1, 1))
x = torch.randn(32, 8).to("other")
for _ in range(10):
    split(x).sum().backward()
"""


@pytest.mark.parametrize("attempt", some(range(3), 1))
def test_a_script_that_ends_with_a_backward_ends_well(attempt):
    """Autograd's thread for the device has something to let go of still."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
