"""Jobs that share a process because their script says that they are stackable."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from cputrain.many.job import Job
from cputrain.many.stacks import StackRule, merged, read_rule
from cputrain.target import Target, TargetKind
from tests.launch.programs import script
from tests.many.test_queue import assert_nothing_left, many, results, start, wait_for

STACKABLE = """
import argparse, json, os
from cputrain.many import stackable

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--width", type=int, default=8)
jobs = stackable(parser.parse_args, "seed")
with open("processes", "a") as file:
    file.write(" ".join(f"{job.width}:{job.seed}" for job in jobs) + "\\n")
# BODY
for job in jobs:
    print(json.dumps({"loss": job.seed / 2, "width": job.width}))
"""
"""Writes down which jobs a process has."""


def stackable_script(folder: Path, body: str = "") -> None:
    script(folder, STACKABLE.replace("# BODY", body))


def processes(folder: Path) -> list[str]:
    return sorted((folder / "processes").read_text().splitlines())


def test_jobs_share_processes_and_each_has_its_result(tmp_path: Path) -> None:
    stackable_script(tmp_path)
    done = many(tmp_path, "--cores=1", "--at-once=2", "--grid", "seed=0..6", "x.py")
    assert done.returncode == 0, done.stderr
    assert sum(len(line.split()) for line in processes(tmp_path)) == 7
    rows = results(tmp_path)
    assert [row["result"]["loss"] for row in rows] == [seed / 2 for seed in range(7)]
    assert sorted(row["stacked"] for row in rows) == [3, 3, 3, 4, 4, 4, 4]
    for seed in range(7):
        log = next((tmp_path / "many-x" / "logs").glob(f"seed={seed}-*.log"))
        assert f'"loss": {seed / 2}' in log.read_text()


def test_only_named_options_differ_within_a_process(tmp_path: Path) -> None:
    stackable_script(tmp_path)
    done = many(tmp_path, "--at-once=1", "--grid", "seed=0..2", "--grid", "width=4,8", "x.py")
    assert done.returncode == 0, done.stderr
    assert all(len({job[0] for job in line.split()}) == 1 for line in processes(tmp_path))
    assert len(processes(tmp_path)) == 2
    for row in results(tmp_path):
        assert str(row["result"]["width"]) == row["parameters"]["width"]
        assert row["result"]["loss"] == int(row["parameters"]["seed"]) / 2


def test_if_one_fails_each_runs_by_itself(tmp_path: Path) -> None:
    stackable_script(tmp_path, "if any(job.seed == 1 for job in jobs): raise ValueError('one')")
    done = many(tmp_path, "--at-once=1", "--grid", "seed=0..2", "x.py")
    assert done.returncode == 1
    assert "seed=0 and 2 more: " in done.stderr
    assert "ValueError: one, it is started again later" in done.stderr
    assert [row["state"] for row in results(tmp_path)] == ["done", "failed", "done"]
    assert [row["attempts"] for row in results(tmp_path)] == [1, 1, 1]
    assert processes(tmp_path) == ["8:0", "8:0 8:1 8:2", "8:1", "8:2"]


def test_a_script_that_trains_its_own_job_alone(tmp_path: Path) -> None:
    script(tmp_path, "import json, sys\nfrom cputrain.many import stackable\n"
                     "if sys.argv[1:] == ['--never']:\n    stackable(list, 'seed')\n"
                     "open('runs', 'a').write(sys.argv[2])\n"
                     "print(json.dumps({'loss': int(sys.argv[2])}))\n")  # fmt: skip
    done = many(tmp_path, "--at-once=1", "--grid", "seed=0..3", "x.py")
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "runs").read_text()) == list("0123")
    assert [row["result"]["loss"] for row in results(tmp_path)] == [0, 1, 2, 3]
    assert {row["stacked"] for row in results(tmp_path)} == {1}


def test_too_few_results_are_told(tmp_path: Path) -> None:
    stackable_script(tmp_path, "jobs = jobs[:1]")
    done = many(tmp_path, "--at-once=1", "--grid", "seed=0..2", "x.py")
    assert done.returncode == 0
    assert "x.py must print a JSON object for each of the 3 jobs of a process" in done.stderr
    assert [row["result"] for row in results(tmp_path)] == [{}, {}, {}]


def test_results_outlive_the_queue(tmp_path: Path) -> None:
    stackable_script(tmp_path, "import time; time.sleep(2)")
    words = ("--at-once=1", "--grid", "seed=0..2", "x.py")
    queue = start(tmp_path, *words)
    wait_for(tmp_path / "processes", "8:0 8:1 8:2")
    time.sleep(0.2)
    queue.send_signal(signal.SIGKILL)
    queue.communicate()
    assert_nothing_left(tmp_path)
    again = many(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert [row["result"]["loss"] for row in results(tmp_path)] == [0, 0.5, 1]
    assert processes(tmp_path) == ["8:0 8:1 8:2"] * 2  # the first was ended with its queue
    third = many(tmp_path, *words)
    assert third.stdout.startswith("3 jobs done (3 of them before)")


def test_processes_that_a_job_starts_have_its_arguments_alone(tmp_path: Path) -> None:
    stackable_script(
        tmp_path,
        "import subprocess, sys\n"
        "if len(jobs) > 1:\n"
        "    subprocess.run([sys.executable, 'x.py', '--seed', '9'], check=True)",
    )
    done = many(tmp_path, "--at-once=1", "--grid", "seed=0..1", "x.py")
    assert done.returncode == 0, done.stderr
    assert processes(tmp_path) == ["8:0 8:1", "8:9"]
    assert [row["result"]["loss"] for row in results(tmp_path)] == [0, 0.5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from cputrain.many import stackable\nx = stackable(p, 'lr', 'seed')", ("lr seed", 16)),
        ("from cputrain.many import stackable as s\ns(p, 'lr', at_most=3)", ("lr", 3)),
        ("import cputrain.many\ndef f():\n    return cputrain.many.stackable(p, 'a')", ("a", 16)),
        ("from cputrain import many\nmany.stackable(p.parse_args, 'a')", ("a", 16)),
        ("from cputrain.many import stackable\nn = 'a'\nstackable(p, n)", None),
        ("from cputrain.many import stackable\nstackable(p, 'a', at_most=k)", None),
        ("from cputrain.many import stackable\nstackable(p)", None),
        ("from cputrain.many import stackable", None),
        ("def stackable(*a): pass\nstackable(p, 'lr')", None),
        ("stackable(p, ", None),
        ("x = '\0'", None),
    ],
)
def test_what_a_script_says(tmp_path: Path, text: str, expected: tuple[str, int] | None) -> None:
    path = tmp_path / "x.py"
    path.write_text(text)
    rule = read_rule(Target(kind=TargetKind.SCRIPT, name=str(path), arguments=()))
    assert (rule and (" ".join(sorted(rule.names)), rule.at_most)) == expected


def job(arguments: str, **parameters: str) -> Job:
    target = Target(kind=TargetKind.SCRIPT, name="x.py", arguments=tuple(arguments.split()))
    return Job(target=target, parameters=parameters)


@pytest.mark.parametrize(
    ("first", "second", "is_allowed"),
    [
        (job("--lr 1", lr="1"), job("--lr 2", lr="2"), True),
        (job("--lr=1 --seed 8", lr="1", seed="8"), job("--lr=2 --seed 9", lr="2", seed="9"), True),
        (job("--lr 1 --width 8", lr="1"), job("--lr 2 --width 9", lr="2"), False),
        (job("--lr 1 --width 1", lr="1"), job("--lr 2 --width 2", lr="2"), True),
        (job("--width 8", width="8"), job("--width 9", width="9"), False),
        (job("--lr 1", lr="1"), job("--lr 2 --deep", lr="2"), False),
        (job("--lr 1", lr="1"), job("--lr 1 x", lr="1"), False),
        (job("a", lr="1"), job("b", lr="1"), False),
        (job("a"), job("b"), False),
        (job("--lr 1", lr="1"), job("--lr 2", lr="2").replace(variables={"A": "1"}), False),
        (job("--lr 1", lr="1"), job("--lr 2", lr="2").replace(timeout_s=1.0), False),
    ],
)
def test_which_jobs_may_share_a_process(first: Job, second: Job, is_allowed: bool) -> None:
    rule = StackRule(names=frozenset({"lr", "seed"}), at_most=4)
    assert rule.allows(first, second) is rule.allows(second, first) is is_allowed


def test_a_script_refuses_jobs_that_differ_in_more(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(
        'script = "x.py"\n[[job]]\narguments = ["--width", "4"]\ngrid = {seed = "0..1"}\n'
        '[[job]]\narguments = ["--width", "8"]\ngrid = {seed = "2..3"}\n'
    )
    stackable_script(tmp_path)
    done = many(tmp_path, "--at-once=1", "jobs.toml")
    assert done.returncode == 0, done.stderr
    assert processes(tmp_path) == ["4:0 4:1", "8:2 8:3"]
    script(tmp_path, "import json\nfrom types import SimpleNamespace\n"
                     "from cputrain.many import stackable\n"
                     "jobs = stackable(lambda words: SimpleNamespace(seed=1, x=words[1]), 'seed')\n"
                     "print(json.dumps({'loss': int(jobs[0].x)}))\n")  # fmt: skip
    done = many(tmp_path, "--at-once=1", "--grid", "seed=5..6", "x.py")
    assert done.returncode == 0, done.stderr
    assert "must name every option in which jobs of one process differ; found x" in done.stderr
    assert [row["result"]["loss"] for row in results(tmp_path)] == [5, 6]


def test_a_process_of_several_jobs_has_the_needs_of_all() -> None:
    jobs = [
        Job(
            target=Target(kind=TargetKind.SCRIPT, name="x.py", arguments=("--lr", lr)),
            parameters={"lr": lr}, memory_bytes=100, timeout_s=5.0,
        )
        for lr in ("1", "2", "3")
    ]  # fmt: skip
    job = merged(jobs)
    assert (job.memory_bytes, job.timeout_s, job.name) == (300, 15.0, "lr=1 and 2 more")
    assert merged(jobs[:1]) is jobs[0]


@pytest.mark.parametrize("arguments", [{}, {"names": ()}, {"names": (1,)}, {"at_most": 0}])
def test_what_must_be_given(arguments: dict[str, object]) -> None:
    from cputrain.errors import UsageError
    from cputrain.many import stackable

    names = arguments.pop("names", ("a",) if arguments else ())
    with pytest.raises(UsageError):
        stackable(list, *names, **arguments)  # type: ignore[arg-type, misc]


def test_a_script_run_by_python_has_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cputrain.many import stackable

    monkeypatch.setattr("sys.argv", ["x.py", "--seed", "3"])
    assert stackable(" ".join, "seed") == ["--seed 3"]
    monkeypatch.setenv("CPUTRAIN_STACK", str(tmp_path / "gone"))
    assert stackable(" ".join, "seed") == ["--seed 3"]
    (tmp_path / "stack").write_text(json.dumps([["--seed", "1"], ["--seed", "2"]]))
    monkeypatch.setenv("CPUTRAIN_STACK", str(tmp_path / "stack"))
    monkeypatch.setattr("cputrain.many.in_script._arguments", [])
    assert stackable(" ".join, "seed") == ["--seed 1", "--seed 2"]
