"""What goes wrong in a replica is told as the model tells it, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from cputrain import Split


class Picky(nn.Module):
    """Does not take every sample; it has a row for five numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5, 2)
        self.first = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.first(self.examine(x))

    def examine(self, x):
        return self.rows(x)


class BackwardFails(torch.autograd.Function):
    """Its backward has a place for a hundred numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient + torch.zeros(100)[x.detach().abs().long()]


def is_other(_x):
    """Tell a model what to do; replaced once the model is proved."""
    return False


@pytest.mark.parametrize("place", [0, 4, 8])
def test_an_error_in_one_replica_is_raised_with_its_traceback(place):
    """The others wait for it at the batch norm, and do not go on waiting."""
    model = Picky()
    split = Split(model, replicas=3)
    x = torch.arange(9) % 5
    split(x)
    x[place] = 6
    with pytest.raises(IndexError, match="out of range") as error:
        split(x)
    assert "examine" in "".join(traceback.format_tb(error.value.__traceback__))
    x[place] = 0
    split(x).sum().backward()
    assert split.calls_divided == 2


def test_an_error_on_the_way_back_is_raised_too():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(2, 2)
            nn.init.eye_(self.inside.weight)
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            return BackwardFails.apply(self.norm(self.inside(x)) + x)

    split = Split(Fails(), replicas=2)
    x = torch.zeros(6, 2)
    split(x).sum().backward()
    x[5] = 200
    with pytest.raises(IndexError, match="out of bounds"):
        split(x).sum().backward()
    split(torch.zeros(6, 2)).sum().backward()
    assert split.calls_divided == 3


def test_parts_that_do_not_do_the_same_say_so_and_do_not_wait_for_ever(monkeypatch):
    """What a model does depends on its samples: one part has a batch norm more than the other."""

    class Decides(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            hidden = self.first(x)
            return self.norm(hidden) if is_other(x) else hidden

    split = Split(Decides(), replicas=3)
    x = torch.zeros(9, 2)
    split(x).sum().backward()
    monkeypatch.setattr(sys.modules[__name__], "is_other", lambda x: bool(x.max() > 5))
    x[4] = 6
    with pytest.raises(RuntimeError, match="found one part at batch norm 1"):
        split(x)
    split(torch.zeros(9, 2)).sum().backward()
    assert split.calls_divided == 2


@pytest.fixture
def run():
    """Starts a process that hears of Ctrl-C, whatever this one does, and ends with the test."""
    with ExitStack() as stack:

        def start(program):
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


TRAINS = """
import torch
from torch import nn
from cputrain import Split
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters())
model = Split(model, replicas=2)
x = torch.randn(64, 64)
for step in range(10**9):
    model(x).sum().backward()
    if step == 3:
        print("going", flush=True)
"""


def test_ctrl_c_ends_at_once(run):
    process = run(TRAINS)
    assert process.stdout.readline() == "going\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - begin < 10
    undivided = run(TRAINS.replace("model = Split(model, replicas=2)", ""))
    assert undivided.stdout.readline() == "going\n"
    undivided.send_signal(signal.SIGINT)
    undivided.communicate(timeout=20)
    assert process.returncode == undivided.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Parted" not in errors


def test_a_caught_ctrl_c_leaves_the_replicas_usable(run):
    process = run(
        TRAINS.replace("for step", "torch.manual_seed(0)\ntry:\n  for step")
        .replace("    model(x)", "      model(x)")
        .replace("    if step", "      if step")
        .replace('        print("going"', '          print("going"')
        + "\nexcept KeyboardInterrupt:\n    pass\n"
        "model.zero_grad()\nmodel(x).sum().backward()\nprint('well', model.calls_divided > 3)\n"
    )
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=20)
    assert said == "well True\n", errors
    assert process.returncode == 0


INTERRUPTED = """
import torch
from torch import nn
from cputrain import Split
torch.set_num_threads(1)
whole = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 64), nn.Dropout(0.1))
model = Split(whole, OPTIONS)
x = torch.randn(64, 64)
model(x).sum().backward()
for _ in range(40):
    try:
        print("going", flush=True)
        while True:
            model(x).sum().backward()
    except KeyboardInterrupt:
        pass
torch.manual_seed(3)
result = model(x)
result.sum().backward()
torch.manual_seed(3)
print("well", model.calls_divided > 3, torch.allclose(result, whole(x), atol=1e-5))
"""


@pytest.mark.long
@pytest.mark.parametrize("options", ["replicas=2", "reproducible=2", "reproducible=7"])
def test_forty_caught_ctrl_c_leave_the_replicas_usable(run, options):
    """In forwards and backwards, and where more shards than cores wait for their turn."""
    process = run(INTERRUPTED.replace("OPTIONS", options))
    chance = random.Random(1)
    for _ in range(40):
        assert process.stdout.readline() == "going\n", process.stderr.read()
        time.sleep(chance.uniform(0.02, 0.1))
        process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert (said, errors, process.returncode) == ("well True True\n", "", 0)


def test_a_script_that_ends_leaves_in_time_and_says_nothing(run):
    process = run(TRAINS.replace("10**9", "5"))
    said, errors = process.communicate(timeout=60)
    assert (said, errors, process.returncode) == ("going\n", "", 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_computes_undivided():
    split = Split(nn.Linear(2, 2), replicas=2)
    x = torch.ones(6, 2)
    right = split(x).detach()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        good = torch.equal(split(x), right) and split.calls_divided == 1
        os.write(writer, b"good" if good else b"bad")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"good"
    os.close(reader)
    os.close(writer)


def sevenths():
    """Threads of seventh replicas."""
    return sum(one.name == "cputrain-replica-6" for one in threading.enumerate())


def none_is_left():
    gc.collect()
    deadline = time.monotonic() + 10
    while sevenths() and time.monotonic() < deadline:
        time.sleep(0.01)
    return sevenths() == 0


def test_replicas_end_with_the_last_model_that_has_them():
    splits = [Split(nn.Linear(2, 2), replicas=7) for _ in range(2)]
    for split in splits:
        split(torch.ones(9, 2))
    assert sevenths() == 1
    del split
    splits.pop()
    gc.collect()
    time.sleep(0.1)
    assert sevenths() == 1
    splits.pop()
    assert none_is_left()


def test_replicas_that_are_not_needed_any_more_do_the_backward_that_is_before_them():
    """Of a model that is called twice in a step, say: another number is chosen in the first."""
    model = nn.Linear(2, 2)
    split = Split(model, replicas=7)
    out = split(torch.ones(14, 2))
    assert split.calls_divided == 1
    split._split_dispatcher.use_only(0)
    gc.collect()
    backward = threading.Thread(target=out.sum().backward, daemon=True)
    backward.start()
    backward.join(60)
    assert not backward.is_alive()
    assert torch.equal(model.weight.grad, torch.full((2, 2), 14.0))
    del out, backward
    assert none_is_left()


def test_threads_of_the_script_may_call_it_at_once():
    split = Split(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval()), replicas=2).eval()
    batches = [torch.randn(9, 4) for _ in range(8)]
    right = [split(batch).detach() for batch in batches]
    found = [None] * 8

    def call(number):
        for _ in range(20):
            found[number] = split(batches[number]).detach()

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


def test_no_memory_is_kept_from_call_to_call():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(4, 4)

        def forward(self, x):
            out = self.inside(x)
            made.append(weakref.ref(out))
            return out * 2

    made = []
    split = Split(Remembers(), replicas=2)
    x = torch.randn(8, 4)
    split(x).sum().backward()
    made.clear()
    split(x).sum().backward()
    split(x).sum().backward()
    gc.collect()
    assert [one() for one in made] == [None] * 4
