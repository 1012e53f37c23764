"""Whole runs with --learn, of scripts that are slow on purpose unless a setting is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import launch, ours, plain, planned, script, verb

TRAINS = """
import signal, sys, time, torch
from torch import nn
from cputrain.learn import allowance, learner
allowance.SHARE = 0.5  # tries all soon
learner.MAX_OTHERS = 9  # other tests run beside this one

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.last = nn.Linear(8, 2)

    def forward(self, images):
        if SLOW(self):
            time.sleep(0.012)
        features = self.conv(images).relu().mean((2, 3))
        return self.last(WRONG(self, features))

def train(num_steps):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 6, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(num_steps):
        loss = (model(images) - torch.arange(8.0).view(4, 2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if AFTER(step):
            break
    print(f"{loss.item():.4e}", torch.get_num_threads(), model.conv.weight.is_contiguous())

torch.manual_seed(1)
model = Slow()
SLOW = lambda self: self.conv.weight.is_contiguous()
WRONG = lambda self, features: features
AFTER = lambda step: False
"""

ALONE = {"OMP_NUM_THREADS": "1"}
"""Threads are the user's, and do not wait for one another."""

STEPS = "\ntrain(210)\n"


def is_near(loss: str, expected: str) -> bool:
    """Whether a loss is another's but for the order of additions."""
    return float(loss) == pytest.approx(float(expected), rel=0.02)


def known(folder: Path) -> dict[str, Any]:
    """What was learnt about the only script."""
    (path,) = (folder / "home" / "cache" / "cputrain" / "tuned").iterdir()
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def reasons(folder: Path) -> dict[tuple[str, str], str]:
    """Why each candidate was rejected; "" if it was kept."""
    if not (folder / "home" / "cache" / "cputrain" / "tuned").exists():
        return {}  # the run has not come so far
    tried = known(folder)["evidence"]["tried"]
    return {(entry["setting"], entry["value"]): entry["reason"] for entry in tried}


def test_what_is_faster_stays_and_is_used_from_the_first_step_on(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + STEPS)
    expected = plain(tmp_path, str(path)).stdout.split()[0]
    learnt = launch(tmp_path, "--learn", str(path), **ALONE)
    assert learnt.returncode == 0, learnt.stderr
    loss, _, is_contiguous = learnt.stdout.split()
    assert (is_near(loss, expected), is_contiguous) == (True, "False")
    (line,) = ours(learnt)
    assert "learnt: channels_last on (" in line
    assert "times as fast)" in line
    assert known(tmp_path)["settings"]["channels_last"] == "on"
    assert known(tmp_path)["evidence"]["shapes"] == ["float32 4×3×6×6"]
    decision = planned(tmp_path, str(path))["channels_last"]
    assert (decision["value"], decision["origin"]) == (True, "measured")
    assert "cputrain launch --learn on 20" in decision["reason"]
    for options in ((), ("--learn",)):
        again = launch(tmp_path, *options, str(path))
        loss, _, is_contiguous = again.stdout.split()
        assert (is_near(loss, expected), is_contiguous) == (True, "False")
        assert "1 convolution channels last" in ours(again)[0]
        assert "channels_last on (" not in ours(again)[0]  # it is not new
    refused = launch(tmp_path, "--learn", "--channels-last", "off", str(path))
    loss, _, is_contiguous = refused.stdout.split()
    assert (is_near(loss, expected), is_contiguous) == (True, "True")


def test_what_changes_results_goes_back(tmp_path: Path) -> None:
    text = "WRONG = lambda self, features: features * (1 if SLOW(self) else 1.001)"
    path = script(tmp_path, TRAINS + text + STEPS)
    expected = plain(tmp_path, str(path)).stdout.split()
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[2] == expected[2] == "True"
    assert "learnt: channels_last" not in done.stderr
    assert "differs by" in reasons(tmp_path)["channels_last", "on"]
    assert known(tmp_path)["settings"].get("channels_last") is None


def test_what_is_slower_goes_back(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        TRAINS + "SLOW = lambda self: not self.conv.weight.is_contiguous()\ntrain(600)",
    )
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[2] == "True"
    assert "times as fast" in reasons(tmp_path)["channels_last", "on"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("is_set", [False, True], ids=["left to us", "set by the user"])
def test_threads_are_learnt_unless_the_user_set_them(tmp_path: Path, *, is_set: bool) -> None:
    text = "SLOW = lambda self: torch.get_num_threads() > 1\n"
    path = script(tmp_path, TRAINS + text + f"train({150 if is_set else 300})")
    done = launch(tmp_path, "--learn", *(["--threads", "2"] if is_set else []), str(path))
    assert done.stdout.split()[1] == ("2" if is_set else "1")
    assert (("threads", "1") in reasons(tmp_path)) is not is_set


@pytest.mark.long
def test_a_script_that_sets_its_threads_keeps_them(tmp_path: Path) -> None:
    text = "AFTER = lambda step: step == 40 and torch.set_num_threads(3)"
    path = script(tmp_path, TRAINS + text + STEPS)
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[1] in ("1", "3"), done.stderr  # 1 if it is learnt after that
    assert done.returncode == 0


@pytest.mark.long
def test_other_batches_are_learnt_anew(tmp_path: Path) -> None:
    text = TRAINS.replace("torch.randn(4, 3, 6, 6)", "torch.randn(4, 3, 6, int(sys.argv[1]))")
    # what is slower may take half of the time of the steps, which are fast
    path = script(tmp_path, text + "\ntrain(210 if sys.argv[1] == '6' else 3000)\n")
    launch(tmp_path, "--learn", str(path), "6", **ALONE)
    first = known(tmp_path)
    assert launch(tmp_path, "--learn", str(path), "6", **ALONE).returncode == 0
    assert known(tmp_path)["evidence"]["shapes"] == first["evidence"]["shapes"]
    assert launch(tmp_path, "--learn", str(path), "7", **ALONE).returncode == 0
    assert known(tmp_path)["evidence"]["shapes"] == ["float32 4×3×6×7"]
    assert ("channels_last", "off") in reasons(tmp_path)  # compared the other way round
    assert known(tmp_path)["settings"]["channels_last"] == "on"


def test_a_run_that_is_stopped_keeps_what_it_has_learnt(tmp_path: Path) -> None:
    text = "AFTER = lambda step: not SLOW(model) and step > 200 and signal.raise_signal(2)"
    path = script(tmp_path, TRAINS + text + "\ntrain(1_000)\n")
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert "KeyboardInterrupt" in done.stderr
    assert known(tmp_path)["settings"]["channels_last"] == "on"


def test_a_broken_file_is_written_anew(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + STEPS)
    launch(tmp_path, "--learn", str(path), **ALONE)
    (kept,) = (tmp_path / "home" / "cache" / "cputrain" / "tuned").iterdir()
    for evidence in (
        {"source": "learn"}, {"source": "learn", "tried": [{"setting": 3}], "shapes": 1}, [], 7
    ):  # fmt: skip
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "evidence": evidence}))
        done = launch(tmp_path, "--learn", str(path), **ALONE)
        assert done.returncode == 0
        assert "[internal]" not in done.stderr


@pytest.mark.long
def test_what_tune_has_found_is_not_learnt_again(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + STEPS)
    launch(tmp_path, "--learn", str(path), **ALONE)
    (kept,) = (tmp_path / "home" / "cache" / "cputrain" / "tuned").iterdir()
    document = {**json.loads(kept.read_text()), "settings": {}, "evidence": {"trials": []}}
    kept.write_text(json.dumps(document))
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[2] == "True"
    assert json.loads(kept.read_text()) == document


def test_what_others_have_disturbed_is_not_kept(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + "learner.MAX_OTHERS = -1" + STEPS)
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[2] == "False"  # it is faster now
    assert "times as fast, not kept: other programs used the CPUs)" in done.stderr
    assert not (tmp_path / "home" / "cache" / "cputrain" / "tuned").exists()


def test_a_module_is_learnt_as_a_script_is(tmp_path: Path) -> None:
    script(tmp_path, TRAINS + STEPS, "package/train.py")
    script(tmp_path, "", "package/__init__.py")
    learnt = launch(tmp_path, "--learn", "-m", "package.train", **ALONE)
    assert "learnt: channels_last on (" in learnt.stderr, learnt.stderr
    again = launch(tmp_path, "--learn", "-m", "package.train", **ALONE)
    assert again.stdout.split()[2] == "False"
    assert "channels_last on (" not in again.stderr  # from the first step on, and not new


@pytest.mark.parametrize("words", [("-",), ("--cmd", "--", sys.executable, "-c", "import torch")])
def test_what_has_no_file_is_not_kept(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = launch(tmp_path, "--learn", *words, stdin="import torch; print('ran')\n")
    assert done.returncode == 0
    assert "[internal]" not in done.stderr
    assert not (tmp_path / "home" / "cache" / "cputrain" / "tuned").exists()


def test_a_fault_of_ours_ends_learning_and_not_the_script(tmp_path: Path) -> None:
    text = "import cputrain.learn.turns as turns; turns.Turns.add = lambda *_: 1 / 0"
    path = script(tmp_path, TRAINS + text + STEPS)
    expected = plain(tmp_path, str(path)).stdout.split()[0]
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.returncode == 0
    loss, _, is_contiguous = done.stdout.split()
    assert (is_near(loss, expected), is_contiguous) == (True, "True")
    assert "[internal] ZeroDivisionError" in ours(done)[0]


def test_a_model_that_does_not_fit_twice_is_not_compared(tmp_path: Path) -> None:
    text = """
from cputrain.runtime.memory_pressure import MemoryPressure
MemoryPressure.available_bytes = lambda _: 1 << 20
"""
    path = script(tmp_path, TRAINS + text + STEPS)
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.split()[2] == "True", done.stderr
    assert "too little memory for a copy" in reasons(tmp_path)["channels_last", "on"]


@pytest.mark.long
def test_several_optimizers_make_one_step(tmp_path: Path) -> None:
    text = """
def train(num_steps):
    images = torch.randn(4, 3, 6, 6)
    parts = [torch.optim.SGD(part.parameters(), 0.01) for part in (model.conv, model.last)]
    for step in range(num_steps):
        for optimizer in parts + parts[:1]:
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4e}", torch.get_num_threads(), model.conv.weight.is_contiguous())
train(120)
"""
    path = script(tmp_path, TRAINS + text)
    expected = plain(tmp_path, str(path)).stdout.split()[0]
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    loss, _, is_contiguous = done.stdout.split()
    assert (is_near(loss, expected), is_contiguous) == (True, "False")


@pytest.mark.long
def test_worker_processes_do_not_learn(tmp_path: Path) -> None:
    text = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=train, args=(120,))
    child.start()
    child.join()
    print("ended", child.exitcode)
"""
    path = script(tmp_path, TRAINS + text)
    done = launch(tmp_path, "--learn", str(path), **ALONE)
    assert done.stdout.splitlines()[-1] == "ended 0"
    assert not (tmp_path / "home" / "cache" / "cputrain" / "tuned").exists()


def test_ranks_do_not_learn(tmp_path: Path) -> None:
    path = script(tmp_path, "print(1)")
    decision = planned(tmp_path, "--learn", str(path), RANK="0", WORLD_SIZE="2", LOCAL_RANK="0",
                       LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")  # fmt: skip
    assert decision["learn"]["value"] is False
    assert "ranks wait for one another" in decision["learn"]["reason"]


def test_it_is_an_option_with_or_without_a_value(tmp_path: Path) -> None:
    path = script(tmp_path, "print(1)")
    (tmp_path / "cputrain.toml").write_text("learn = true")
    for options, value in (((), True), (("--learn", "off"), False), (("--learn=off",), False)):
        assert planned(tmp_path, *options, str(path))["learn"]["value"] is value
    (tmp_path / "cputrain.toml").write_text("")
    assert planned(tmp_path, str(path))["learn"]["value"] is False
    assert planned(tmp_path, "--learn", str(path))["learn"]["value"] is True
    done: subprocess.CompletedProcess[str] = verb(tmp_path, "plan", "--learn=maybe", str(path))
    assert "--learn must be one of auto, on, off" in done.stderr
