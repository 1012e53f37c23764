"""`cputrain bench loaders`: every loader for real, on tiny data."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from cputrain.bench.loaders import CASES, case_table
from cputrain.bench.loaders.__main__ import compare_case
from cputrain.bench.loaders.cases import LoaderCase, cases
from cputrain.bench.loaders.comparison import summarise
from cputrain.bench.loaders.contenders import CONTENDERS
from cputrain.bench.loaders.runs import cpu_seconds, tensor_sums
from cputrain.bench.tree_memory import private_bytes
from cputrain.errors import CputrainError
from tests import selected


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


NUM_BATCHES = {
    "tensors": {"tensors-64-0": 8, "tensors-64-2": 8, "tensors-256-0": 2, "tensors-256-2": 2},
    "rows": {"rows-0": 64, "rows-process": 64, "rows-2": 64},
    "subset": {"subset": 1},
    "pictures": {"pictures-2": 8, "pictures-0": 8},
    "cached": {"cached-epoch": 1, "cached-second": 1},
    "objects": {"objects-strings-fork": 8, "objects-dicts-fork": 8, "objects-dicts-spawn": 8},
    "start": {"start": 1},
}
"""The batches of an epoch of each case, by the group of cases; the last may not be full."""

GROUPS = selected.cases(NUM_BATCHES, ["tensors", "rows", "pictures", "cached"])
"""Groups of cases; those whose workers are spawned take long."""


@pytest.fixture(scope="module")
def found(request):
    """The cases of the groups that tests are selected for, by name."""
    groups = selected.selected(request, NUM_BATCHES, __file__)
    words = [] if groups == list(CASES) else groups  # all of them need not be named
    done = bench("--repeats", "2", "loaders", "--quick", "--json", *words)
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)["cases"]
    assert [case["name"] for case in ran] == [
        name for group in groups for name in NUM_BATCHES[group]
    ]
    return {case["name"]: case for case in ran}


def test_every_group_is_run_here():
    assert list(NUM_BATCHES) == list(CASES)


def side(case, name):
    return next(one for one in case["sides"] if one["name"] == name)


@pytest.mark.parametrize("name", GROUPS)
def test_every_case_runs_torchs_loader_and_ours(found, name):
    """SPDL takes part where it is installed; the two others always do."""
    for case_name, num_batches in NUM_BATCHES[name].items():
        case = found[case_name]
        assert case["batches"] == num_batches
        for loader in ("torch", "cputrain"):
            assert len(side(case, loader)["seconds"]) == 2
        assert {"spdl", "spdl threads"} <= {
            *case["left_out"],
            *(one["name"] for one in case["sides"]),
        }


@pytest.mark.parametrize("name", ["pictures"])
def test_processor_time_is_told_with_and_without_that_of_the_samples(found, name):
    """Workers have ended when it is read, so theirs is in it."""
    pictures = found[f"{name}-2"]
    alone, torchs = side(pictures, "samples alone"), side(pictures, "torch")
    assert 0 < alone["cpu_seconds"] < torchs["cpu_seconds"]
    assert torchs["cpu_seconds_beyond_samples"] == pytest.approx(
        torchs["cpu_seconds"] - alone["cpu_seconds"], abs=torchs["cpu_seconds"]
    )
    assert alone["speedup"] is None


@pytest.mark.long
@pytest.mark.parametrize("name", ["start"])
def test_no_processor_time_is_told_of_a_start(found, name):
    assert side(found[name], "torch")["cpu_seconds"] is None


@pytest.mark.parametrize("name", GROUPS)
def test_the_memory_of_workers_is_told_beside_that_of_empty_ones(found, name):
    for case_name in NUM_BATCHES[name]:
        for loader in ("torch", "cputrain"):
            one = side(found[case_name], loader)
            told = one["worker_bytes"], one["empty_worker_bytes"]
            if name == "objects":
                assert min(told) > 1 << 20
            else:
                assert told == (None, None)


def test_the_memory_of_a_process_is_what_it_has_for_itself():
    """Memory that is there to be shared is counted for nobody."""
    before = private_bytes(os.getpid())
    # (a bytearray may lie in memory that this process had before, and freed memory may stay)
    own = mmap.mmap(-1, 50 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(50):
        own.write(bytes(1 << 20))
    assert private_bytes(os.getpid()) - before > 45 << 20
    shared = mmap.mmap(-1, 50 << 20)
    for _ in range(50):
        shared.write(bytes(1 << 20))
    assert private_bytes(os.getpid()) - before < 55 << 20


def test_tables_say_what_was_run_and_that_quick_data_says_nothing_of_speed():
    """Data goes to stdout, what happens meanwhile to stderr."""
    done = bench("loaders", "--repeats", "1", "pictures", "--quick", "--markdown")
    assert done.returncode == 0, done.stderr
    assert "### Pictures made in Python" in done.stdout
    assert "| torch | 1 (reference) |" in done.stdout
    assert "too small to say anything about speed" in done.stdout
    assert "round 1 of 1" in done.stderr
    assert "round 1 of 1" not in done.stdout
    assert "tensors" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("loaders", "tensor"), "tensors, rows, subset, pictures, cached, objects, start"),
        (("loaders", "--repeats", "0"), "whole number from 1"),
        (("loaders", "--quik"), "Did you mean --quick?"),
        (("--launch-args", "-q", "loaders"), "no effect on loaders"),
    ],
)
def test_bad_input_is_one_clear_message(arguments, words):
    """The message names the parameter and the rule; nothing is run."""
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_names_every_group_of_cases():
    done = bench("loaders", "--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in CASES)


class Doubled:
    """A loader that hands each batch out twice."""

    def __init__(self, loader):
        self._loader = loader

    def __iter__(self):
        for batch in self._loader:
            yield batch
            yield batch


def test_a_loader_with_other_batches_is_not_compared(monkeypatch):
    """A faster loader that hands out something else is no faster loader."""
    from contextlib import contextmanager

    from cputrain.bench.loaders import __main__ as runner

    ours = CONTENDERS[1]

    @contextmanager
    def doubled(case, data):
        with ours.open_loader(case, data) as loader:
            yield Doubled(loader)

    monkeypatch.setattr(runner, "CONTENDERS", (CONTENDERS[0], ours.replace(open_loader=doubled)))
    with pytest.raises(CputrainError, match=r"batches of 'cputrain' in tensors-64-0 must equal"):
        compare_case(cases("tensors", quick=True)[0], 1)


def test_all_loaders_take_the_rows_in_the_same_order():
    """So the sums of every batch can be compared, not only their number."""
    data = TensorDataset(torch.arange(100))
    case = LoaderCase(name="", title="", dataset=lambda: data, batch_size=16, num_workers=0)
    orders = []
    for contender in CONTENDERS:
        if not contender.why_not(case, data):
            with contender.open_loader(case, data) as loader:
                orders.append(torch.cat([batch[0] for batch in loader]).tolist())
    assert len(orders) >= 3
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == list(range(100))


def test_a_ratio_is_taken_within_its_round():
    """A machine that slows down between rounds changes no ratio."""
    runs = [
        {"contender": name, "round_number": number, "seconds": seconds, "cpu_seconds": None,
         "batches": 1}
        for number, name, seconds in [
            (1, "torch", 1.0), (1, "cputrain", 0.5), (2, "cputrain", 5.0), (2, "torch", 10.0),
        ]
    ]  # fmt: skip
    case = summarise(
        {
            "name": "start",
            "title": "first",
            "timed": "first batch",
            "memory": {},
            "left_out": {},
            "runs": runs,
        }
    )
    assert case.side("cputrain").speedup.as_json() == {"median": 2, "lowest": 2, "highest": 2}
    head, rows = case_table(case)
    assert head == ("", "against torch", "median", "fastest to slowest (middle half)")
    assert [row[0] for row in rows] == ["torch", "cputrain"]


def test_sums_are_of_each_tensor():
    assert tensor_sums([torch.ones(2, 3), torch.tensor([1, 2])]) == (6.0, 3.0)
    assert tensor_sums(torch.full((4,), 200, dtype=torch.uint8)) == (800.0,)


def test_processor_time_grows():
    before = cpu_seconds()
    sum(range(1_000_000))
    assert cpu_seconds() > before


def test_the_comparison_of_loaders_loads_no_torch():
    code = "import sys, cputrain.bench.loaders; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
