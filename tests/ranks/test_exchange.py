"""Gradients added up in shared memory: the same bits for all, and nobody waits for the dead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launch.programs import launch, ours, plain, script
from tests.selected import cases

ADDS_UP = str(Path(__file__).with_name("adds_up.py"))

RANKS = str(Path(__file__).parents[2] / "examples" / "ranks.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


def told(done):
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("count", cases([2, 3, 5], [3]))
def test_all_have_the_sum(tmp_path, count):
    done = launch(tmp_path, "-q", "--nproc-per-node", str(count), ADDS_UP)
    assert done.returncode == 0, done.stderr
    found = told(done)
    assert len(found) == count
    assert len({one["had"] for one in found}) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [("gone", "has exited"), pytest.param("late", "has not reached it", marks=pytest.mark.long)],
)
def test_nobody_waits_for_one_that_does_not_come(tmp_path, how, says):
    """Of three ranks the last; each other one is told, though it need not be its neighbour."""
    done = launch(tmp_path, "-q", "--nproc-per-node", "3", ADDS_UP, how, "2")
    found = told(done)
    assert len(found) == 2, done.stderr
    assert any(says in one["error"] for one in found)
    assert all("rank" in one["error"] and one["seconds"] < 30 for one in found)


@pytest.mark.parametrize("way", cases(["shared", "torch", "auto"], ["shared", "auto"]))
def test_a_model_learns_the_same_by_each_way(tmp_path, way):
    words = ("--steps", "30")
    alone = told(plain(tmp_path, RANKS, *words))[0]["losses"]
    options = ("--nproc-per-node", "2", "--gradient-exchange", way)
    done = launch(tmp_path, *options, RANKS, *words)
    assert done.returncode == 0, done.stderr
    assert told(done)[0]["losses"] == pytest.approx(alone, abs=1e-5)
    if way != "auto":
        assert ("gradients added up in shared memory" in ours(done)[0]) == (way == "shared")


HOOKS = """
import sys, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group('gloo')
rank = distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
calls = []
def hook(state, bucket):
    calls.append(state)
    whole = bucket.buffer().mul_(0)
    done = torch.futures.Future()
    done.set_result(whole)
    return done
if sys.argv[1] == 'before': model.register_comm_hook('own', hook)
model(torch.full((2, 4), rank + 1.0)).sum().backward()
ours = model.module.bias.grad.clone()
if sys.argv[1] == 'after': model.register_comm_hook('own', hook)
model.zero_grad()
model(torch.full((2, 4), rank + 1.0)).sum().backward()
assert calls and set(calls) == {'own'}
assert model.module.bias.grad.eq(0).all()
assert ours.eq(0 if sys.argv[1] == 'before' else 2).all(), ours
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_of_the_script_has_the_last_word(tmp_path, when):
    script(tmp_path, HOOKS)
    options = ("--nproc-per-node", "2", "--gradient-exchange", "shared")
    done = launch(tmp_path, *options, "x.py", when)
    assert done.returncode == 0, done.stderr
    assert "added up" not in done.stderr


ODD = """
import json, pickle, sys, torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group('gloo')
rank = distributed.get_rank()

# rows of a table: gloo adds up those that were touched
table = DistributedDataParallel(nn.Embedding(9, 2, sparse=True))
table(torch.tensor([rank])).sum().backward()
rows = table.module.weight.grad.coalesce()
assert rows.indices().tolist() == [[0, 1]] and rows.values().eq(0.5).all()

# the first rank has no batch at all, the second has two
torch.manual_seed(0)
uneven = DistributedDataParallel(nn.Linear(3, 1))
with uneven.join():
    for _ in range(2 * rank):
        uneven(torch.ones(4, 3)).sum().backward()

# used first, joined then
later = DistributedDataParallel(nn.Linear(3, 1, bias=False))
later(torch.ones(4, 3)).sum().backward()
with later.join():
    for _ in range(2 * rank):
        later.zero_grad()
        later(torch.ones(4, 3)).sum().backward()
assert later.module.weight.grad.tolist() == [[2.0 if rank else 4.0] * 3]
pickle.dumps(later)

half = DistributedDataParallel(nn.Linear(3, 1, bias=False).half())
half(torch.full((1, 3), 4e4).half()).sum().backward()
assert half.module.weight.grad.isfinite().all()
distributed.destroy_process_group()
"""


def test_what_ddp_does_besides_is_as_it_was(tmp_path):
    script(tmp_path, ODD)
    done = launch(tmp_path, "--nproc-per-node", "2", "--gradient-exchange", "shared", "x.py")
    assert done.returncode == 0, done.stderr
    assert "gradients added up in shared memory" in ours(done)[0]


DIES = """
import os, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group('gloo')
model = DistributedDataParallel(torch.nn.Linear(3, 1))
for step in range(9):
    if step == 5 and distributed.get_rank() == 1: os.kill(os.getpid(), 9)
    model(torch.ones(4, 3)).sum().backward()
"""


@pytest.mark.parametrize("way", ["shared", "torch"])
def test_the_rank_that_died_is_told_not_the_one_that_missed_it(tmp_path, way):
    script(tmp_path, DIES)
    options = ("--nproc-per-node", "2", "--monitor-interval", "2", "--gradient-exchange", way)
    done = launch(tmp_path, *options, "x.py")
    assert done.returncode == 137, done.stderr
    assert "rank 1 failed first, with signal 9" in done.stderr


CHOSEN = """
import json, sys, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group('gloo')
model = DistributedDataParallel(torch.nn.Linear(64, 64))
ways = set()
for step in range(30):
    model(torch.ones(2, 64)).sum().backward()
from cputrain.runtime.state import NOW
(chosen,) = NOW.applied['gradient_exchange']._reducers.values()
sys.stdout.write(json.dumps({'way': chosen.method}) + chr(10))
distributed.destroy_process_group()
"""


def test_every_rank_chooses_the_same_way(tmp_path):
    script(tmp_path, CHOSEN)
    done = launch(tmp_path, "-q", "--nproc-per-node", "3", "x.py")
    assert done.returncode == 0, done.stderr
    found = {one["way"] for one in told(done)}
    assert len(found) == 1
    assert found < {"shared", "torch"}
