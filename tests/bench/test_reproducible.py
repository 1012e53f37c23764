"""The table of what reproducible trainings cost, on a training of a second."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.launch.programs import run, script

TRAINING = """
import json, sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(20, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seconds, losses = [], []
for _ in range(6):
    begin = time.perf_counter()
    loss = model(torch.randn(24, 20)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    seconds.append(time.perf_counter() - begin)
print(json.dumps({"losses": losses, "seconds_per_step": seconds, "samples_per_step": 24}))
"""

CELL = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\) \| `([0-9a-f]{16})`"


@pytest.mark.long
def test_a_row_has_costs_and_stamps(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)
    command = [sys.executable, "-m", "cputrain.bench.reproducible", "--rounds", "1"]
    done = run([*command, "--shards", "2,5", str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    header, line, row = done.stdout.splitlines()
    assert header == "| | 2 shards | stamp | 5 shards | stamp |"
    assert line.count("|") == header.count("|")
    found = re.fullmatch(rf"\| {re.escape(str(path))} \| {CELL} \| {CELL} \|", row)
    assert found is not None, row
    assert found[1] != found[2]
