"""Ctrl-C at random moments, typed in a terminal: raised every time, and nothing is left behind.

`INTERRUPTS=100` sets the number of trials for each script; `INTERRUPTS_SEED=` repeats the moments
of an earlier run, whose seed its failure names.
"""

from __future__ import annotations

import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
from itertools import count
from multiprocessing import util
from pathlib import Path

import pytest

from cputrain import Pool
from cputrain.pool.progress import Bar
from tests.launch.programs import PYTHON, environment
from tests.pool.interrupting import WITHIN_S
from tests.pool.scripts import HEAD

TRIALS = int(os.environ.get("INTERRUPTS", "3"))

SCRIPTS = {
    "pool": """
if __name__ == "__main__":
    print("begin", flush=True)
    while True:
        with Pool(2) as pool:
            pool.map(f.double, range(50))
""",
    "imap": """
if __name__ == "__main__":
    print("begin", flush=True)
    while True:
        with Pool(2) as pool:
            for _ in pool.imap(f.first_of, [[1]] * 3000): pass
            for _ in pool.imap(f.double, iter(range(3000))): pass
            [pool.apply_async(f.double, (1,)) for _ in range(300)][-1].get()
""",
    "closed": """
if __name__ == "__main__":
    print("begin", flush=True)
    while True:
        pool = Pool(2, maxtasksperchild=3)
        result = pool.starmap_async(f.add, [(1, 2)] * 50, 1)
        pool.close()
        pool.join()
        result.get()
""",
    "fill": """
from cputrain import fill
def make(rows, view, seed):
    view[:] = seed % 7
if __name__ == "__main__":
    print("begin", flush=True)
    while True:
        fill(torch.empty(3000, 64), make, processes=2)
""",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_ctrl_c_is_never_lost_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + SCRIPTS[kind])
    seed = int(os.environ.get("INTERRUPTS_SEED", random.randrange(1 << 32)))
    draws = random.Random(seed)
    # the first tenth of a second is when the first pool starts
    delays = [draws.uniform(0, draws.choice([0.1, 1.0])) for _ in range(TRIALS)]
    driver = subprocess.run(
        [PYTHON, "-m", "tests.pool.interrupting", script, *map(str, delays)],
        cwd=Path(__file__).parents[2],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 + 15 * TRIALS,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    results = [json.loads(line) for line in driver.stdout.splitlines()]
    assert len(results) == TRIALS
    for number, result in enumerate(results):
        shown = result["shown"]
        about = f"INTERRUPTS_SEED={seed} trial {number}: {result}\n{shown}"
        assert result["is_gone"], about
        assert result["elapsed_s"] < WITHIN_S, about
        assert result["signal"] == signal.SIGINT, about
        assert shown.count("Traceback") == 1, about
        lines = shown.partition("Traceback")[2].splitlines()
        raised = [line for line in lines if line and not line[0].isspace()]
        assert raised[:1] == ["KeyboardInterrupt"], about
        assert "rror" not in "".join(raised), about
        assert "ignored in" not in shown, about
        assert result["left_in_shm"] == [], about


class _PressingCounter:
    """Presses Ctrl-C when a Finalize of multiprocessing takes its number."""

    def __init__(self) -> None:
        self._numbers = count(1 << 40)

    def __next__(self) -> int:
        signal.raise_signal(signal.SIGINT)
        return next(self._numbers)


def test_ctrl_c_while_a_pool_registers_its_end_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, nothing_left: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(util, "_finalizer_counter", _PressingCounter())
    with pytest.raises(KeyboardInterrupt):
        Pool(2)
    gc.collect()
    assert capsys.readouterr().err == ""


def test_ctrl_c_before_anything_of_a_pool_is_made_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool = Pool.__new__(Pool)
    del pool
    gc.collect()
    assert capsys.readouterr().err == ""


class _Terminal(io.StringIO):
    """Presses Ctrl-C when something is written to it."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_while_a_bar_appears_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt), Bar("make", 9) as bar:
        bar.advance(0)
    assert sys.stderr is terminal
    shown = terminal.getvalue()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0  # the cursor is seen again
