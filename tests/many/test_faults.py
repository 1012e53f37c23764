"""Jobs and queues that end as they should not: nothing is lost, and no process is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.programs import script
from tests.many.test_queue import (
    assert_nothing_left,
    many,
    processes_with,
    results,
    start,
    wait_for,
)
from tests.selected import some

OTHERS = """
import json, os, sys, time
seed = sys.argv[2]
open("runs", "a").write(seed)
if seed == "0":
    {fault}
time.sleep(0.3)
print(json.dumps({{"loss": float(seed)}}))
"""
"""One job has a fault; the others print their seed."""

FAULTS = {
    "is killed": ("os.kill(os.getpid(), 9)", 137),
    "crashes": ("import ctypes; ctypes.string_at(0)", 139),
    "exits": ("os._exit(7)", 7),
    "leaves a process": (
        "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)", 0),
    "becomes a daemon": (
        "\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(1000)\n        os._exit(0)", 0),
    "stops itself and its group": ("os.killpg(0, 15)", 143),
    "kills its parent": ("os.kill(os.getppid(), 9); time.sleep(1000)", 137),
    "closes its output": ("os.close(1); os.close(2)", 1),
    "prints no text": ("os.write(1, bytes(range(256)) * 1000)", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", some(FAULTS, 5))
def test_the_other_jobs_are_right(tmp_path: Path, name: str) -> None:
    fault, code = FAULTS[name]
    script(tmp_path, OTHERS.format(fault=fault))
    done = many(tmp_path, "--grid", "seed=0..3", "x.py")
    assert "Traceback" not in done.stderr, done.stderr
    rows = {row["parameters"]["seed"]: row for row in results(tmp_path)}
    assert [rows[seed]["result"].get("loss") for seed in "123"] == [1.0, 2.0, 3.0]
    assert rows["0"]["exit_code"] == code
    assert done.returncode == (1 if code else 0)
    runs = (tmp_path / "runs").read_text()
    assert sorted(runs.replace("0", "")) == list("123")
    assert_nothing_left(tmp_path)


def test_a_job_that_ignores_signals_is_killed_by_the_second_ctrl_c(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open("runs", "a").write("x")
time.sleep(1000)
""",
    )
    queue = start(tmp_path, "x.py")
    wait_for(tmp_path / "runs")
    queue.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert queue.poll() is None
    queue.send_signal(signal.SIGINT)
    queue.communicate(timeout=8)
    assert queue.returncode == 130
    assert_nothing_left(tmp_path)


def test_a_queue_that_is_killed_leaves_nothing_and_continues(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import os, sys, subprocess, time
seed = sys.argv[2]
if seed == "0":
    open("runs", "a").write(seed)
elif not os.path.exists("go"):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open("started", "a").write(seed)
    time.sleep(1000)
else:
    open("runs", "a").write(seed)
print(seed)
""",
    )
    words = ("--at-once=2", "--grid", "seed=0..3", "x.py")
    queue = start(tmp_path, *words)
    wait_for(tmp_path / "started", "2")
    queue.kill()
    queue.communicate(timeout=10)
    assert_nothing_left(tmp_path)
    (tmp_path / "go").touch()
    done = many(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "runs").read_text()) == list("0123")
    assert [row["result"]["loss"] for row in results(tmp_path)] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.02 * number for number in range(1, 31)])
def test_a_queue_is_killed_at_any_time(tmp_path: Path, delay_s: float) -> None:
    script(tmp_path, "import sys\nopen('runs', 'a').write(sys.argv[2])\nprint(sys.argv[2])\n")
    words = ("--at-once=2", "--grid", "seed=0..5", "x.py")
    queue = start(tmp_path, *words)
    time.sleep(delay_s)
    queue.kill()
    queue.communicate(timeout=10)
    assert_nothing_left(tmp_path)
    saved = {path.name[:6] for path in tmp_path.glob("many-x/outcomes/*.json")}
    before = (tmp_path / "runs").read_text() if (tmp_path / "runs").exists() else ""
    done = many(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert [row["result"]["loss"] for row in results(tmp_path)] == [float(n) for n in range(6)]
    again = (tmp_path / "runs").read_text()[len(before) :]
    assert not {f"seed={seed}" for seed in again} & saved


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 3}', "\0\0\0"])
def test_an_outcome_that_is_broken_counts_as_none(tmp_path: Path, text: str) -> None:
    script(tmp_path, "print(1)\n")
    assert many(tmp_path, "x.py").returncode == 0
    outcome = next((tmp_path / "many-x" / "outcomes").iterdir())
    outcome.write_text(text)
    done = many(tmp_path, "x.py")
    assert done.returncode == 0, done.stderr
    assert "before" not in done.stdout


def test_a_job_that_eats_all_memory_is_stopped_and_runs_alone(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import json, os, sys, time
seed = int(sys.argv[2])
attempt = len([x for x in open("runs").read() if x == str(seed)]) if os.path.exists("runs") else 0
open("runs", "a").write(str(seed))
held = []
for _ in range(40 if seed == 0 and attempt == 0 else 4):
    held.append(bytearray(b"x" * (16 << 20)))
    time.sleep(0.15)
print(json.dumps({"loss": seed}))
""",
    )
    done = many(tmp_path, "--at-once=2", "--memory-limit=400M", "--memory=100M",
                "--grid", "seed=0..3", "x.py")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stopped seed=0: " in done.stderr
    assert done.stderr.count("memory was nearly used up, it is started again later") == 1
    assert [row["result"]["loss"] for row in results(tmp_path)] == [0, 1, 2, 3]
    assert (tmp_path / "runs").read_text()[-1] == "0"  # at the end, alone
    assert sorted((tmp_path / "runs").read_text()) == list("00123")
    assert_nothing_left(tmp_path)


@pytest.mark.long
def test_a_job_that_needs_more_than_there_is_fails(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import time
held = []
while True:
    held.append(bytearray(b"x" * (16 << 20)))
    time.sleep(0.1)
""",
    )
    done = many(tmp_path, "--memory-limit=300M", "--grid", "seed=0..1", "x.py")
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert all("memory" in row["error"] for row in results(tmp_path))
    assert_nothing_left(tmp_path)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """Limits on the size of files stand for it: RLIMIT_FSIZE holds for the queue, too."""
    import resource
    import subprocess

    from tests.launch.programs import PYTHON, environment

    script(tmp_path, "print('loss 0.5')\nprint('x' * 100_000)\n")
    done = subprocess.run(
        [PYTHON, "-m", "cputrain.launch", "many", "--grid", "seed=0..1", "x.py"],
        cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, check=False,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "2 failed" in done.stdout
    assert "Traceback" not in done.stderr
    assert_nothing_left(tmp_path)


def test_supervisors_end_with_their_jobs(tmp_path: Path) -> None:
    script(tmp_path, "import os\nopen('runs', 'a').write('x')\n")
    assert many(tmp_path, "--grid", "seed=0..3", "x.py").returncode == 0
    assert not processes_with(str(tmp_path))
    assert not list((tmp_path / "many-x" / "progress").iterdir())
    assert os.path.getsize(tmp_path / "many-x" / "lock") == 0
