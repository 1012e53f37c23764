"""Queues as arrays of Slurm's tasks: the batch file, and a real cluster of one node."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cputrain.errors import NotFound
from cputrain.many.folder import Folder
from cputrain.many.job import Job, Outcome
from cputrain.many.slurm import batch_file, submit
from cputrain.target import Target, TargetKind
from tests.launch.programs import script
from tests.many.test_queue import many, results
from tests.ranks.slurm import Cluster, running_cluster

TRAIN = Target(kind=TargetKind.SCRIPT, name="x.py", arguments=())


def jobs(count: int, **fields: object) -> list[Job]:
    return [
        Job(target=TRAIN.replace(arguments=(str(number),)), **fields)  # type: ignore[arg-type]
        for number in range(count)
    ]


def lines_of(text: str) -> dict[str, str]:
    options = (line.removeprefix("#SBATCH --") for line in text.splitlines() if "#SBATCH" in line)
    return dict(line.strip("'").split("=", 1) for line in options)


def test_tasks_ask_for_what_was_measured() -> None:
    outcome = Outcome(exit_code=0, elapsed_s=3.0, cores=2, peak_bytes=1 << 30)
    text = batch_file(jobs(6), [0, 3, 4, 5], [outcome], "/data/many-x", ["a b", "x.py"], None)
    options = lines_of(text)
    assert options["array"] == "0,3-5"
    assert options["cpus-per-task"] == "2"
    assert options["mem"] == "1485M"  # 1.2 GiB and 256 MiB
    assert "time" not in options
    assert text.splitlines()[-1].endswith("--folder /data/many-x 'a b' x.py")


def test_tasks_ask_for_what_was_given() -> None:
    given = jobs(2, memory_bytes=2 << 30, timeout_s=3600.0)
    options = lines_of(batch_file(given, [0, 1], [], "/data/many-x", [], 4))
    assert (options["cpus-per-task"], options["mem"], options["time"]) == ("4", "2048M", "62")
    assert "mem" not in lines_of(batch_file(jobs(1), [0], [], "/data/many-x", [], None))


def test_without_slurm_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = Folder(str(tmp_path / "many-x"))
    with pytest.raises(NotFound, match="sbatch does not exist"):
        submit(jobs(1), folder, [])
    folder.close()


def test_a_refusal_is_told(tmp_path: Path) -> None:
    script(tmp_path, "")
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such partition' >&2\nexit 1\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = many(tmp_path, "--slurm", "--grid", "seed=0..1", "x.py", PATH=path)
    assert done.returncode == 125
    assert "no such partition" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running_cluster(tmp_path_factory)


def test_an_array_of_six_tasks_runs_every_job_once(tmp_path: Path, slurm: Cluster) -> None:
    script(
        tmp_path,
        """
import json, os, sys
open("runs", "a").write(sys.argv[2])
if sys.argv[2] == "4" and not os.path.exists("go"):
    raise SystemExit(3)
print(json.dumps({"loss": int(sys.argv[2]), "task": os.environ.get("SLURM_ARRAY_TASK_ID")}))
""",
    )
    variables = {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
    words = ("--grid", "seed=0..5", "x.py")

    def submitted() -> subprocess.CompletedProcess[str]:
        return many(tmp_path, "--slurm", "--memory=100M", *words, **variables)

    def wait_for_end() -> None:
        limit = time.monotonic() + 100
        while slurm.say("squeue", "--noheader").stdout.strip():
            assert time.monotonic() < limit, slurm.say("squeue").stdout
            time.sleep(0.2)

    done = submitted()
    assert done.returncode == 0, done.stderr
    assert "has 6 tasks" in done.stdout
    wait_for_end()
    assert "has 1 task:" in submitted().stdout  # the one that failed
    refused = submitted()
    if refused.returncode:  # it has not ended meanwhile
        assert "must have no tasks in Slurm" in refused.stderr
    (tmp_path / "go").touch()
    wait_for_end()
    done = many(tmp_path, *words, **variables)
    assert done.returncode == 0, done.stderr
    assert "6 jobs done" in done.stdout
    rows = results(tmp_path)
    assert [row["result"]["loss"] for row in rows] == list(range(6))
    assert [row["result"].get("task") for row in rows if row["result"]["loss"] != 4] == list(
        "01235"
    )
    counts = {seed: (tmp_path / "runs").read_text().count(seed) for seed in "012345"}
    assert all(count == 1 for seed, count in counts.items() if seed != "4"), counts
    assert json.loads((tmp_path / "many-x" / "slurm_job").read_text()) > 0
