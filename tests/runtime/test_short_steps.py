"""Short steps with many threads: a run says once, at its end, that fewer may be faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cputrain.launch.planning import SITE_FOLDER
from tests.launch.programs import ours, plain, script

TEXT = """
import sys, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({steps}):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep({seconds})
{last}
"""

NOTE = "32 threads; fewer may be faster, which cputrain tune finds out"


def run(
    folder: Path,
    *,
    threads: int = 32,
    settings: dict[str, str] | None = None,
    steps: int = 30,
    seconds: float = 0.0,
    last: str = "",
) -> Any:
    """A script under a plan for a machine with many cores."""
    plan = {"values": {"threads": threads}, "environment": {}, "settings": settings or {}}
    path = script(folder, TEXT.format(steps=steps, seconds=seconds, last=last))
    return plain(
        folder, str(path), CPUTRAIN_PLAN=json.dumps(plan), CPUTRAIN_REPORT="1",
        PYTHONPATH=SITE_FOLDER,
    )  # fmt: skip


def test_fewer_threads_are_suggested(tmp_path: Path) -> None:
    lines = ours(run(tmp_path))
    assert len(lines) == 2
    assert NOTE in lines[0]
    assert "threads" in lines[1]


@pytest.mark.parametrize(
    "case",
    [
        {"threads": 2},
        {"steps": 10},
        {"seconds": 0.06, "steps": 22},
        {"settings": {"threads": "32"}},
        {"last": "torch.set_num_threads(1)"},
    ],
    ids=["few threads", "few steps", "long steps", "chosen by the user", "changed by the script"],
)
def test_nothing_is_suggested_otherwise(tmp_path: Path, case: dict[str, Any]) -> None:
    done = run(tmp_path, **case)
    assert done.returncode == 0, done.stderr
    assert len(ours(done)) == 1
