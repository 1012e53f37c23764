"""What a run says at its end: that fewer threads, or a measurement, may make it faster."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cputrain.launch.planning import SITE_FOLDER
from cputrain.runtime import notes
from tests.launch.programs import ours, plain, script

TEXT = """
import sys, time, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(lambda *_: None)  # runs after ours
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


@pytest.mark.parametrize(
    ("seconds", "trains", "is_told"), [(59, True, False), (61, True, True), (61, False, False)]
)
def test_a_long_run_that_was_never_measured_is_told_how(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, trains: bool, is_told: bool
) -> None:
    run = notes.UntunedRun()
    later = register_optimizer_step_post_hook(lambda *_: None)
    if trains:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    later.remove()
    now = run._started_at + seconds
    monkeypatch.setattr(notes, "time", SimpleNamespace(monotonic=lambda: now))
    assert ("cputrain launch --learn" in run.describe()) is is_told


def test_fewer_threads_are_suggested(tmp_path: Path) -> None:
    done = run(tmp_path, steps=notes.MAX_STEPS + 20)
    assert done.returncode == 0, done.stderr
    lines = ours(done)
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
