"""Ctrl-C ends a script that loads data, whenever it is typed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.data import interrupted
from tests.launch.programs import PYTHON, environment
from tests.selected import cases

TRIALS = int(os.environ.get("CPUTRAIN_INTERRUPTS", "0"))
"""How many trials, if not the few of a usual run."""

NAMES = list(interrupted.scripts("fork"))


def _trials(generator: random.Random, few: bool) -> list[tuple[str, str, float]]:
    """The scripts, how their workers are started, and when Ctrl-C is typed."""
    if TRIALS:
        methods = ["fork"] * 6 + ["spawn", "forkserver"]
        picked = [(NAMES[n % len(NAMES)], methods[n % len(methods)]) for n in range(TRIALS)]
    else:
        methods = ["spawn", "forkserver"]
        names = generator.sample(NAMES, 4) if few else NAMES
        picked = [(name, "fork") for name in names]
        picked += [
            (generator.choice(NAMES), method)
            for method in generator.sample(methods, 1 if few else 2)
        ]
    latest_s = {"fork": 0.6, "spawn": 6.0, "forkserver": 6.0}
    return [(name, method, generator.uniform(0, latest_s[method])) for name, method in picked]


@pytest.mark.parametrize("few", cases([True, False], [True]))
def test_an_interrupt_at_any_moment_ends_the_script(tmp_path: Path, few: bool) -> None:
    seed = int(os.environ.get("CPUTRAIN_INTERRUPTS_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    trials = _trials(random.Random(seed), few)
    templates = subprocess.Popen(
        [PYTHON, str(Path(interrupted.__file__))],
        cwd=tmp_path,
        env=environment(
            tmp_path, PYTHONPATH=str(Path(__file__).parents[2]), OMP_NUM_THREADS="1", TERM="dumb"
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert templates.stdin is not None
    assert templates.stdout is not None
    failed: list[Any] = []
    try:
        for trial in trials:
            templates.stdin.write(json.dumps(trial) + "\n")
            templates.stdin.flush()
            report = json.loads(templates.stdout.readline())
            print(*trial, report["took_s"], report["status"])
            if (
                not report["interrupted"]
                or report["left"]
                or report["shared_memory"]
                or report["took_s"] > 10
                or "Exception ignored" in report["shown"]
            ):
                failed.append((trial, report))
                print(report["shown"])
    finally:
        templates.kill()
        templates.communicate()
    assert not failed, failed
