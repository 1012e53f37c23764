"""Queues of real processes: what is run, shown and kept, and what is run again."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters.forked import SERVERS
from tests.launch.programs import PYTHON, complaint, environment, in_terminal, script, verb

PRINTS = """
import argparse, json, os, sys
p = argparse.ArgumentParser()
p.add_argument("--seed", type=int); p.add_argument("--lr", type=float, default=0.0)
a = p.parse_args()
with open("runs", "a") as file:
    file.write(f"{a.seed}\\n")
print("some text")
print(json.dumps({"loss": a.seed / 2, "cpus": len(os.sched_getaffinity(0))}))
"""
"""Writes down that it was run, and prints a result."""

TRAINS = """
import sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[-1])):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("threads", torch.get_num_threads())
"""


def many(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return verb(folder, "many", *words, **options)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-m", "cputrain.launch", "many", *words],
        cwd=folder, env=environment(folder), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def results(folder: Path, name: str = "many-x") -> list[dict[str, Any]]:
    lines = (folder / name / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(path: Path, text: str = "", timeout_s: float = 30.0) -> None:
    limit = time.monotonic() + timeout_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < limit, f"no {text!r} in {path}"
        time.sleep(0.02)


def processes_with(text: str) -> list[int]:
    """Return the processes whose environment or command line has a text."""
    found = []
    servers = {server.process.pid for server in SERVERS.values()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in {os.getpid(), *servers}:
            try:
                content = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                is_dead = b") Z " in (folder / "stat").read_bytes()
            except OSError:
                continue
            if text.encode() in content and not is_dead:
                found.append(int(folder.name))
    return found


def assert_nothing_left(folder: Path, timeout_s: float = 15.0) -> None:
    limit = time.monotonic() + timeout_s
    while left := processes_with(str(folder)):
        assert time.monotonic() < limit, left
        time.sleep(0.05)


def test_every_combination_is_run_once(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    done = many(tmp_path, "--grid", "lr=1e-3,1e-2", "x.py", "--grid", "seed=0..2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 jobs done. Results: many-x/results.csv")
    assert sorted((tmp_path / "runs").read_text().split()) == sorted("012012")
    rows = results(tmp_path)
    assert [row["job"] for row in rows][:2] == ["lr=1e-3,seed=0", "lr=1e-3,seed=1"]
    assert all(row["result"]["loss"] == int(row["parameters"]["seed"]) / 2 for row in rows)
    assert all(row["result"]["cpus"] >= row["cores"] >= 1 for row in rows)
    with (tmp_path / "many-x" / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["seed"] for row in table] == list("012012")
    assert table[1]["loss"] == "0.5"
    log = next((tmp_path / "many-x" / "logs").glob("lr=1e-3,seed=1-*.log"))
    assert "some text" in log.read_text()


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    assert many(tmp_path, "--grid", "seed=0..1", "x.py").returncode == 0
    done = many(tmp_path, "--grid", "seed=0..2", "x.py")
    assert done.stdout.startswith("3 jobs done (2 of them before)")
    assert sorted((tmp_path / "runs").read_text().split()) == list("012")
    again = many(tmp_path, "--again", "--grid", "seed=0..2", "x.py")
    assert again.returncode == 0
    assert sorted((tmp_path / "runs").read_text().split()) == list("001122")
    assert len(results(tmp_path)) == 3


def test_a_job_that_fails_does_not_stop_the_rest(tmp_path: Path) -> None:
    script(tmp_path, "import sys\nif sys.argv[2] == '1':\n    raise ValueError('no such seed')\n")
    done = many(tmp_path, "--grid", "seed=0..2", "x.py")
    assert done.returncode == 1
    assert "ValueError: no such seed" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("2 jobs done, 1 failed")
    failed = next(row for row in results(tmp_path) if row["state"] == "failed")
    assert failed["parameters"] == {"seed": "1"}
    assert failed["exit_code"] == 1
    assert failed["error"] == "ValueError: no such seed"


def test_a_failed_job_is_tried_again(tmp_path: Path) -> None:
    script(tmp_path, "import os\nopen('runs', 'a').write('x')\n"
                     "raise SystemExit(os.path.getsize('runs') < 3)\n")  # fmt: skip
    done = many(tmp_path, "--retries=2", "x.py")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs").read_text() == "xxx"
    assert results(tmp_path)[0]["attempts"] == 3
    assert done.stderr.count("it is started again later") == 2


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    script(tmp_path, "import time\ntime.sleep(1000)\n")
    done = many(tmp_path, "--timeout=1", "x.py")
    assert done.returncode == 1
    assert "timeout" in done.stderr
    assert "timeout" in results(tmp_path)[0]["error"]
    assert_nothing_left(tmp_path)


def test_steps_are_counted_and_threads_are_those_of_the_cores(tmp_path: Path) -> None:
    script(tmp_path, TRAINS)
    done = many(tmp_path, "--cores=1", "--grid", "steps=7,9", "x.py")
    assert done.returncode == 0, done.stderr
    assert [row["steps"] for row in results(tmp_path)] == [7, 9]
    assert all(row["peak_bytes"] > 10 << 20 for row in results(tmp_path))
    for log in (tmp_path / "many-x" / "logs").iterdir():
        assert "threads 1" in log.read_text()


def test_settings_of_launch_are_passed_on(tmp_path: Path) -> None:
    script(tmp_path, "import os, torch\nprint(torch.get_num_threads(), os.environ['A'])\n")
    done = many(tmp_path, "--threads=1", "--env", "A={seed}", "--grid", "seed=5", "x.py")
    assert done.returncode == 0, done.stderr
    assert results(tmp_path)[0]["result"] == {"loss": 5.0}
    log = next((tmp_path / "many-x" / "logs").iterdir())
    assert log.read_text().startswith("1 5")


def test_modules_and_commands_are_run(tmp_path: Path) -> None:
    script(tmp_path, PRINTS, "package/train.py")
    done = many(tmp_path, "--grid", "seed=0", "-m", "package.train")
    assert done.returncode == 0, done.stderr
    done = many(tmp_path, "--grid", "n=3,4", "--cmd", "--", "sh", "-c", "exit $(({n} - 3))")
    assert done.returncode == 1
    assert [row["exit_code"] for row in results(tmp_path, "many-sh")] == [0, 1]


def test_jobs_come_from_files(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    (tmp_path / "jobs.csv").write_text("seed\n4\n6\n")
    (tmp_path / "jobs.toml").write_text('script = "x.py"\ngrid = {seed = [8]}\n')
    assert many(tmp_path, "--jobs", "jobs.csv", "x.py").returncode == 0
    assert [row["result"]["loss"] for row in results(tmp_path)] == [2.0, 3.0]
    assert many(tmp_path, "jobs.toml").returncode == 0
    assert [row["result"]["loss"] for row in results(tmp_path, "many-jobs")] == [4.0]


def test_commands_are_shown_without_being_run(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    done = many(tmp_path, "--dry-run", "--env=A=b c", "--grid", "seed=0..1", "x.py", "-v")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"A='b c' cputrain launch x.py -v --seed {seed}" for seed in (0, 1)
    ]
    assert not (tmp_path / "many-x").exists()


def test_lines_of_json_are_printed_at_the_end(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    done = many(tmp_path, "--json", "--grid", "seed=0..1", "x.py")
    assert [json.loads(line)["result"]["loss"] for line in done.stdout.splitlines()] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the script is missing"),
        (("none.py",), "does not exist"),
        (("--grid", "lr", "x.py"), "must be a name and its values"),
        (("--grid", "a=1,1", "x.py"), "must be different"),
        (("--jobs", "none.csv", "x.py"), "must be a readable file of jobs"),
        (("none.toml",), "must be a readable file of jobs"),
        (("--cores=0", "x.py"), "--cores"),
        (("--at-once=0", "x.py"), "--at-once"),
        (("--memory=x", "x.py"), "--memory"),
        (("--env=A", "x.py"), "--env"),
        (("--threads=0", "x.py"), "--threads"),
        (("--folder=x.py", "x.py"), "--folder"),
        (("x.py", "--grid"), "--grid needs a value"),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    script(tmp_path, "")
    done = many(tmp_path, *words)
    assert message in complaint(done, done.returncode)
    assert done.returncode in (2, 127)


def test_two_queues_do_not_share_a_folder(tmp_path: Path) -> None:
    script(tmp_path, "import time\nopen('runs', 'a').write('x')\ntime.sleep(1000)\n")
    queue = start(tmp_path, "x.py")
    try:
        wait_for(tmp_path / "runs")
        assert f"which the process {queue.pid} uses" in complaint(many(tmp_path, "x.py"))
    finally:
        queue.send_signal(signal.SIGINT)
        queue.communicate(timeout=30)
    assert queue.returncode == 130
    assert_nothing_left(tmp_path)


def test_ctrl_c_stops_and_the_same_command_continues(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import os, sys, time
open("runs", "a").write(sys.argv[2])
if sys.argv[2] != "0" and not os.path.exists("go"):
    time.sleep(1000)
""",
    )
    queue = start(tmp_path, "--at-once=2", "--grid", "seed=0..3", "x.py")
    wait_for(tmp_path / "runs", "2")
    queue.send_signal(signal.SIGINT)
    stdout, stderr = queue.communicate(timeout=30)
    assert queue.returncode == 130, stderr
    assert "1 job done, 3 waiting" in stdout
    assert "The same command again runs the jobs that are not done." in stdout
    assert "Traceback" not in stderr
    assert_nothing_left(tmp_path)
    (tmp_path / "go").touch()
    done = many(tmp_path, "--at-once=2", "--grid", "seed=0..3", "x.py")
    assert done.returncode == 0, done.stderr
    assert "4 jobs done (1 of them before)" in done.stdout
    assert (tmp_path / "runs").read_text().count("0") == 1


def test_a_terminal_shows_a_table(tmp_path: Path) -> None:
    script(tmp_path, "import time\nprint('loss 0.5')\ntime.sleep(1.5)\nprint('{\"loss\": 0.25}')\n")
    argv = (
        "/usr/bin/env", "TERM=xterm", "COLUMNS=120",
        *(PYTHON, "-m", "cputrain.launch", "many", "--grid", "seed=0..1", "x.py"),
    )  # fmt: skip
    shown, code = in_terminal(argv, tmp_path)
    assert code == 0
    assert "steps/s" in shown
    assert "running" in shown
    assert "seed=1: " in shown
    assert "loss 0.25" in shown
