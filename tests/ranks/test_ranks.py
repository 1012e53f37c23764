"""`cputrain launch --nproc-per-node N`: the result of one process, parts of the machine, an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.programs import LAUNCH, environment, launch, ours, plain, script

RANKS = str(Path(__file__).parents[2] / "examples" / "ranks.py")

CPUS = sorted(os.sched_getaffinity(0))

VIEW = """
import json, os
with open('/proc/self/status') as file:
    mask = next(line.split()[1] for line in file if line.startswith('Cpus_allowed_list'))
import torch
names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT',
         'GROUP_RANK', 'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_RESTART_COUNT')
seen = {'mask': mask, 'cpus': sorted(os.sched_getaffinity(0)), 'threads': torch.get_num_threads(),
        'lacks': [name for name in names if name not in os.environ]}
with open('seen' + os.environ['RANK'], 'w') as file:
    json.dump(seen, file)
"""


def losses(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def test_the_losses_are_those_of_one_process(tmp_path):
    alone = losses(plain(tmp_path, RANKS))
    assert alone[-1] < alone[0]
    for count in ("2", "4"):
        done = launch(tmp_path, "--nproc-per-node", count, RANKS)
        assert losses(done) == pytest.approx(alone, abs=1e-5)
        said = [line for line in ours(done) if "starts more ranks than" not in line]
        assert len(said) == 1  # the first rank's: others have nothing else to say


LAST_IS_THE_MODEL = """
import pathlib, torch
import torch._dynamo  # once there is a group, default arguments of what it imports reference it
from torch import distributed, nn

def train():
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    mean = torch.ones(1)
    distributed.all_reduce(mean)
    distributed.destroy_process_group()

train()
names = (file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm"))
print(" ".join(names) + "\\n", end="")  # in one write: both ranks print at the same time
"""


def test_a_model_that_is_the_last_to_hold_its_group_does_not_destroy_it(tmp_path):
    """It would wait for threads that wait for the GIL, which it holds."""
    done = launch(tmp_path, "--nproc-per-node", "2", str(script(tmp_path, LAST_IS_THE_MODEL)))
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert "pt_gloo_runloop" in line
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("count", [2, 4])
def test_each_rank_has_its_part_of_the_machine(tmp_path, count):
    script(tmp_path, VIEW)
    done = launch(tmp_path, "--nproc-per-node", str(count), "x.py")
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / f"seen{rank}").read_text()) for rank in range(count)]
    assert all(one["lacks"] == [] for one in seen)
    assert all(set(one["cpus"]) <= set(CPUS) for one in seen)
    if count <= len(CPUS):
        every = [cpu for one in seen for cpu in one["cpus"]]
        assert len(every) == len(set(every))
    assert all(one["threads"] == max(1, len(CPUS) // count) for one in seen)


def test_ranks_that_see_one_gpu_each_have_cores_of_their_own_too(tmp_path):
    script(tmp_path, VIEW)
    done = launch(tmp_path, "--virtual-local-rank", "--nproc-per-node", "2", "x.py")
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / f"seen{rank}").read_text()) for rank in range(2)]
    assert len(CPUS) == 1 or not set(seen[0]["cpus"]) & set(seen[1]["cpus"])
    assert len(ours(done)) == 1


def test_threads_that_the_user_has_set_are_kept(tmp_path):
    script(tmp_path, VIEW)
    done = launch(tmp_path, "--nproc-per-node", "1", "x.py", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen0").read_text())["threads"] == 1


def test_nodes_that_do_not_come_are_waited_for_so_long(tmp_path):
    script(tmp_path, "")
    words = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    done = launch(tmp_path, *words, "--rdzv-conf", "join_timeout=2", "x.py")
    assert done.returncode == 1
    assert "the rendezvous at localhost:0 failed" in done.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("raise ValueError('its own')", 1)],
)
def test_the_exit_code_of_the_rank_that_fails_comes_through(tmp_path, end, code):
    begin = "import os, sys, time, torch\nif os.environ['RANK'] == '1':"
    script(tmp_path, f"{begin} {end}\ntime.sleep(99)")
    done = launch(tmp_path, "-q", "--nproc-per-node", "2", "x.py")
    assert done.returncode == code
    assert "rank 1 failed first" in done.stderr
    # once by the rank itself, and once in the agent's account, with the traceback
    assert done.stderr.count("ValueError: its own") == (2 if code == 1 else 0)


def test_a_rank_that_dies_is_started_again_from_the_checkpoint(tmp_path):
    whole = losses(plain(tmp_path, RANKS))
    dies = str(Path(__file__).with_name("dies.py"))
    words = ("--nproc-per-node", "2", "--max-restarts", "2", dies, "--checkpoint", "run.pt")
    done = launch(tmp_path, *words)
    assert losses(done) == pytest.approx(whole, abs=1e-5)
    without = launch(tmp_path, *words[:2], dies, "--checkpoint", "other.pt")
    assert without.returncode == 137


DEAF = """
import os, signal, time
for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)
open('rank' + os.environ['RANK'], 'w').write(str(os.getpid()))
while True: time.sleep(1)
"""


def two_deaf_ranks(folder):
    """The agent, and the process of each rank, once they do not listen any more."""
    script(folder, DEAF)
    process = subprocess.Popen(
        [*LAUNCH, "-q", "--nproc-per-node", "2", "x.py"], cwd=folder, env=environment(folder),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    files = [folder / f"rank{rank}" for rank in range(2)]
    end = time.monotonic() + 60
    while not all(one.exists() and one.read_text() for one in files):
        assert time.monotonic() < end
        time.sleep(0.05)
    return process, [Path("/proc", one.read_text()) for one in files]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_rank(tmp_path, number):
    """Those that do not listen, too."""
    process, ranks = two_deaf_ranks(tmp_path)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number, said
    assert not any(one.exists() for one in ranks)


def test_no_rank_is_left_without_its_agent(tmp_path):
    process, ranks = two_deaf_ranks(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 30
    while any(one.exists() for one in ranks):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nproc-per-node", "0"), "--nproc-per-node must be"),
        (("--nproc-per-node", "many"), "--nproc-per-node must be"),
        (("--nnodes", "3:1"), "--nnodes must be"),
        (("--nnodes", "x"), "--nnodes must be"),
    ],
)
def test_numbers_that_are_none(tmp_path, words, says):
    script(tmp_path, "")
    done = launch(tmp_path, *words, "x.py")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_that_is_said(tmp_path):
    script(tmp_path, "")
    words = ("launch", "--nproc-per-node", "2", "x.py")
    hidden = (
        "import sys; sys.modules['torch'] = None; from cputrain.launch.cli import main; "
        f"sys.exit(main({list(words)!r}))"
    )
    done = plain(tmp_path, "-c", hidden)
    assert done.returncode == 127
    assert "torch is not installed" in done.stderr
