"""Memory that is kept between steps, and given back when it is no longer needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.machine.source import RootSource
from cputrain.runtime.memory_pressure import MemoryPressure
from cputrain.runtime.process_tree import num_programs
from tests.launch.programs import launch, plain, script

MIB = 1 << 20

HEADER = """
import json, os, resource, time, torch
from torch import nn

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(batch, steps):
    for _ in range(steps):
        model(torch.ones(batch, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def train_until(batch, seconds, is_enough=lambda: False):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_enough():
        train(batch, 10)
"""


def said(folder: Path, text: str, *words: str, start: Any = launch, **changes: str) -> Any:
    """What a script prints as JSON."""
    done = start(folder, *words, str(script(folder, HEADER + text)), **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_steps_touch_no_memory_anew_once_it_is_kept(tmp_path: Path) -> None:
    text = """
train(20_000, 4)
counts = [faults()]
for _ in range(7):
    train(20_000, 1)
    counts.append(faults())
steps = sorted(after - before for before, after in zip(counts, counts[1:]))
print(steps[3])  # a few steps touch again what was returned to measure the need
"""
    kept, python = said(tmp_path, text), said(tmp_path, text, start=plain)
    assert python > 8_000  # activations of 41 MB: more than glibc ever takes from its heap
    assert kept * 10 < python


def test_memory_is_pythons_until_the_first_step(tmp_path: Path) -> None:
    text = """
import numpy
found = []
for _ in range(3):
    before = faults()
    table = numpy.zeros(64 << 20, dtype="uint8")  # calloc: no page of it is touched
    found.append(faults() - before)
    del table
big = [torch.ones(16 << 20) for _ in range(6)]
before = resident()
del big
print(json.dumps([max(found), before - resident()]))
"""
    for start in (launch, plain):
        touched, returned = said(tmp_path, text, start=start)
        assert touched < 1000, start  # of 16,384 pages
        assert returned > 350 * MIB, start


def test_what_steps_no_longer_need_is_given_back(tmp_path: Path) -> None:
    """A model that is deleted, and batches that become small."""
    text = """
deleted = [torch.ones(16 << 20) for _ in range(3)]
train(25_000, 4)
del deleted
train_until(64, {seconds}, lambda: resident() < {limit})
print(resident())
"""
    python = said(tmp_path, text.format(seconds=0.1, limit=0), start=plain)
    limit = 1.15 * python + 64 * MIB
    # sooner than kept memory is trimmed to measure the need
    assert said(tmp_path, text.format(seconds=8, limit=limit)) < limit


FORKED = """
import ctypes, multiprocessing

def work(_):
    scratch = [torch.ones(1 << 20) for _ in range(40)]  # 160 MB in blocks of 4 MB
    large = torch.ones(24 << 20)
    del scratch, large
    with open("/proc/self/smaps_rollup") as file:
        own = [line.split()[1] for line in file if line.startswith("Private_Dirty")]
    return int(own[0]) * 1024

torch.set_num_threads(1)  # libgomp's threads are not forked along
train(25_000, 3)
sbrk = ctypes.CDLL(None).sbrk
sbrk.restype = ctypes.c_void_p
hole, above = torch.ones(40 << 20), []
while hole.data_ptr() < sbrk(0) and (not above or above[-1].data_ptr() < hole.data_ptr()):
    above.append(torch.ones(1 << 14))
del hole  # in the middle of the heap, if the heap is where it was
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(json.dumps(pool.map(work, range(2), chunksize=1)))
"""


@pytest.mark.long
def test_forked_workers_keep_no_more_than_under_python(tmp_path: Path) -> None:
    # glibc returns no memory below a small block that is free in a cache, which is there by chance
    uncached = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
    kept = said(tmp_path, FORKED, **uncached)
    python = said(tmp_path, FORKED, start=plain, **uncached)
    assert max(kept) < max(python) + 64 * MIB


def test_a_limited_address_space_is_left_alone(tmp_path: Path) -> None:
    """Holes in a heap could reach the limit before python does."""
    path = script(tmp_path, HEADER + "train(1000, 4)")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))"
    script(tmp_path, f"{limit}\nimport runpy; runpy.run_path({str(path)!r})", "y.py")
    assert "freed memory kept" not in launch(tmp_path, "y.py").stderr
    assert "freed memory kept" in launch(tmp_path, str(path)).stderr
    assert "freed memory" not in launch(tmp_path, "--allocator", "default", str(path)).stderr


def files(folder: Path, **contents: str) -> MemoryPressure:
    """The pressure on a machine with these files."""
    for name, text in contents.items():
        script(folder, text, name.replace("__", "/").replace("_dot_", "."))
    return MemoryPressure(RootSource(str(folder)))


GROUP = "sys__fs__cgroup__job__memory"
MOUNTED = {
    "proc__mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "proc__self__cgroup": "0::/job\n",
}


@settings(max_examples=200, deadline=None)
@given(
    total=st.integers(1, 1 << 20),
    available=st.floats(0, 1),
    used=st.floats(0, 1),
    cached=st.floats(0, 1),
    has_limit=st.booleans(),
    stalled=st.floats(0, 100).map(lambda value: round(value, 2)),
)
def test_pressure_is_what_the_files_say(
    tmp_path_factory: pytest.TempPathFactory,
    total: int,
    available: float,
    used: float,
    cached: float,
    has_limit: bool,
    stalled: float,
) -> None:
    free, current = int(total * available), int(total * 1024 * used)
    droppable = int(current * cached)
    found = files(
        tmp_path_factory.mktemp("machine"),
        proc__meminfo=f"MemTotal: {total} kB\nMemAvailable: {free} kB\n",
        proc__pressure__memory=f"some avg10={stalled} avg60=0.00\nfull avg10=99.00 avg60=0.00\n",
        **MOUNTED,
        **{
            f"{GROUP}_dot_current": f"{current}\n",
            f"{GROUP}_dot_max": f"{total * 1024}\n" if has_limit else "max\n",
            f"{GROUP}_dot_high": "max\n",
            f"{GROUP}_dot_stat": f"anon 5\nactive_file {droppable}\ninactive_file 0\n",
        },
    )
    is_full = has_limit and current - droppable > 0.9 * total * 1024
    assert found.is_high() == (free < 0.1 * total or stalled > 10 or is_full)


def test_a_machine_without_such_files_has_no_pressure(tmp_path: Path) -> None:
    assert not MemoryPressure(RootSource(str(tmp_path))).is_high()


@pytest.mark.executed
def test_programs_of_a_launch_are_counted_and_forked_workers_are_not(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, subprocess, sys\n"
        "from cputrain.runtime.process_tree import num_programs\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n    os.close(writer); os.read(reader, 1); os._exit(0)\n"
        "print(num_programs())\n"
        "os.close(writer); child.communicate(b'\\n'); os.wait()\n",
    )
    done = launch(tmp_path, "x.py")
    assert done.stdout == "2\n", done.stderr
    assert num_programs() >= 1


@pytest.mark.executed
def test_a_rank_counts_its_own_programs(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, subprocess, sys\n"
        "from cputrain.runtime.process_tree import num_programs\n"
        "if 'LOCAL_RANK' not in os.environ:\n"
        "    ranks = [subprocess.Popen([sys.executable, 'x.py'], env={**os.environ,\n"
        "        'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': '2'}) for rank in range(2)]\n"
        "    sys.exit(sum(rank.wait() for rank in ranks))\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(num_programs())\n"
        "child.communicate(b'\\n')\n",
    )
    done = launch(tmp_path, "x.py")
    assert done.stdout.split() == ["2", "2"], done.stderr


UNDER_PRESSURE = """
from cputrain.runtime.state import NOW
from cputrain.runtime import memory_pressure

train(40_000, 6)
kept = NOW.applied["allocator"]
states = [kept.is_keeping]
before = resident()
memory_pressure.MIN_FREE_FRACTION = 1.1  # whatever this machine has left is too little
train_until(64, 2.5, lambda: not kept.is_keeping)
train_until(64, 0.3)
states += [kept.is_keeping, before - resident() > 64 << 20]
memory_pressure.MIN_FREE_FRACTION = 0.0
train_until(64, 2.5, lambda: kept.is_keeping)
states += [kept.is_keeping]
print(json.dumps(states))
"""


def test_memory_is_given_back_while_the_machine_is_short_of_it(tmp_path: Path) -> None:
    assert said(tmp_path, UNDER_PRESSURE) == [True, False, True, True]


def test_the_budget_is_divided_among_ranks_and_bounded_by_the_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cputrain.launch", "plan", "--json"]
    budgets = {}
    for count in (1, 2):
        ranks = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(count)}
        done = subprocess.run(
            command, env={**os.environ, **ranks}, cwd=tmp_path, capture_output=True, check=True
        )
        decisions = {entry["policy"]: entry for entry in json.loads(done.stdout)["decisions"]}
        budgets[count] = decisions["allocator"]["value"]["keep_bytes"]
    assert budgets[2] == budgets[1] // 2
    assert budgets[1] <= 16 << 30


COMPILED = """
import sys, warnings
model = nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
graphs = []

def count(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph

@torch.compile(backend=count)
def whole(x):
    model(x).sum().backward()
    optimizer.step()

step = torch.compile(optimizer.step, backend=count)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(6):
        whole(torch.ones(2, 8))
        model(torch.ones(2, 8)).sum().backward()
        step()
print(json.dumps([graphs, len(caught), [str(one.message)[:60] for one in caught]]))
"""


@pytest.mark.long
def test_compilers_do_not_look_into_it(tmp_path: Path) -> None:
    words = ("--fused-optimizer", "off")
    assert said(tmp_path, COMPILED, *words) == said(tmp_path, COMPILED, start=plain)
