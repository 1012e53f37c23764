"""Processes that share the machine each get their part of it, once."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import CPUTRAIN, PYTHON, launch, ours, planned, run, script

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

TEXT = """
import json, os
def mask():
    with open('/proc/self/status') as file:
        line = next(line for line in file if line.startswith('Cpus_allowed_list'))
    return line.split()[1]
import torch
planned = json.loads(os.environ['CPUTRAIN_PLAN'])['rank']
seen = [mask(), torch.get_num_threads(), planned, os.environ.get('OMP_NUM_THREADS')]
with open('seen' + os.environ.get('LOCAL_RANK', '') + '.json', 'w') as file:
    json.dump(seen, file)
"""


def of_torchrun(index: int, count: int = 2) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(count),
        "TORCHELASTIC_RUN_ID": "none",
        "OMP_NUM_THREADS": "1",
    }


def test_ranks_get_disjoint_parts(tmp_path: Path) -> None:
    script(tmp_path, TEXT)
    masks = set()
    for index in (0, 1):
        done = launch(tmp_path, "x.py", **of_torchrun(index))
        assert done.returncode == 0
        assert len(ours(done)) == (index == 0)  # which speaks for all
        mask, threads, *_ = json.loads((tmp_path / f"seen{index}.json").read_text())
        assert threads == len(CPUS) // 2
        masks.add(mask)
    assert len(masks) == 2


def test_a_rank_is_divided_once(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import json, os\n"
        "print(json.loads(os.environ['CPUTRAIN_PLAN'])['rank'], os.sched_getaffinity(0))",
    )
    once = launch(tmp_path, "x.py", **of_torchrun(1))
    inner = (PYTHON, "-m", "cputrain.launch", "launch")
    twice = launch(tmp_path, "--cmd", "--", *inner, "x.py", **of_torchrun(1))
    assert once.stdout == twice.stdout
    assert once.stdout.startswith("1/2 ")
    # a plan that is made for the rank's mask must not divide it anew
    known = {**of_torchrun(1), "CPUTRAIN_PLAN": '{"rank":"1/2"}'}
    assert planned(tmp_path, "x.py", **known)["placement"]["value"] is None
    assert planned(tmp_path, "x.py", **known)["threads"]["value"] == len(CPUS)


def start_ranks(folder: Path, *options: str, **changes: str) -> list[list[Any]]:
    """What two ranks saw that torchrun started, itself started by us."""
    script(folder, TEXT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    where = ("--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}")
    done = run(
        (CPUTRAIN, "launch", *options, "--cmd", "--", PYTHON, *agent, *where, "x.py"),
        folder,
        **changes,
    )
    assert done.returncode == 0, done.stderr
    assert len(ours(done)) <= 1, done.stderr
    return [json.loads((folder / f"seen{index}.json").read_text()) for index in (0, 1)]


@pytest.mark.long
def test_ranks_that_start_after_the_plan_take_their_parts(tmp_path: Path) -> None:
    first, second = start_ranks(tmp_path)
    assert first[0] != second[0]
    assert first[1] == second[1] == len(CPUS) // 2
    assert [first[2], second[2]] == ["0/2", "1/2"]
    assert first[3] == second[3] == "1"  # as torchrun has set it


def test_the_users_words_hold_in_every_rank(tmp_path: Path) -> None:
    first, second = start_ranks(tmp_path, "--placement", "none", "--threads", "2")
    assert first[:2] == second[:2]
    assert first[1] == 2
    assert len(first[0]) > 1


def test_launchers_that_have_bound_ranks_are_believed(tmp_path: Path) -> None:
    slurm = {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    half = ("taskset", "--cpu-list", str(CPUS[0]))
    words = (*half, PYTHON, "-m", "cputrain.launch", "plan", "--json")
    done = run(words, tmp_path, **slurm, SLURM_CPU_BIND_TYPE="mask_cpu:")
    found = {entry["policy"]: entry for entry in json.loads(done.stdout)["decisions"]}
    assert found["placement"]["value"] is None
    assert found["threads"]["value"] == 1
    loose = planned(tmp_path, **slurm, SLURM_CPU_BIND_TYPE="none")
    assert len(loose["placement"]["value"]) == len(CPUS) // 2
    assert "Slurm" in loose["threads"]["reason"]


@pytest.mark.parametrize(
    ("launcher", "index", "count"),
    [
        ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ],
)
def test_each_launcher_is_known(tmp_path: Path, launcher: str, index: str, count: str) -> None:
    masks = [
        planned(tmp_path, **{index: str(number), count: "2"})["placement"] for number in (0, 1)
    ]
    assert not set(masks[0]["value"]) & set(masks[1]["value"])
    assert launcher in masks[0]["reason"]
    for wrong in ("", "x", "-1", "2", "\u00b2", "9" * 50):
        found = planned(tmp_path, **{index: wrong, count: "2"})["placement"]
        assert found["value"] is None, wrong


def test_more_ranks_than_cores_share_them(tmp_path: Path) -> None:
    for index in range(5):
        found = planned(tmp_path, **of_torchrun(index, 5))
        assert len(found["placement"]["value"]) == 1
        assert found["threads"]["value"] == 1
