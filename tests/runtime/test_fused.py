"""Fused optimizers: the same training, and nothing that a script could notice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cputrain.kernels.threads import use_cores
from cputrain.runtime.fused import FusedOptimizers
from cputrain.runtime.kernel_threads import KernelThreads
from tests.launch.programs import launch, plain, script
from tests.runtime.conftest import SCRIPT, Trained


def alike(mine: Any, theirs: Any) -> bool:
    """Whether two answers are equal, numbers within 1e-5 of each other."""
    if isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(alike(mine[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(alike, mine, theirs))
    if isinstance(theirs, float):
        return bool(mine == pytest.approx(theirs, rel=1e-5))
    return bool(mine == theirs)


FUSED = (
    "losses_and_states",
    "schedulers_scalers_and_late_groups",
    "gradients_that_come_late",
    "channels_last_models",
    "gradients_that_turn_sparse",
    "closures_and_subclasses",
    "numbers_of_double_size",
)

LEFT_TO_TORCH = (
    "memory_in_another_order",
    "choices_of_the_script",
    "tensors_kernels_cannot_take",
    "sparse_gradients",
    "compiled_steps",
)


@pytest.mark.parametrize("question", [*FUSED, *LEFT_TO_TORCH])
def test_training_goes_as_under_plain_python(trained: Trained, question: str) -> None:
    mine, theirs = trained.ours[question][0], trained.theirs[question][0]
    if isinstance(theirs, dict):
        for name in theirs:
            assert alike(mine[name], theirs[name]), (name, mine[name], theirs[name])
    assert alike(mine, theirs), (mine, theirs)


@pytest.mark.parametrize("question", FUSED)
def test_what_can_be_fused_is(trained: Trained, question: str) -> None:
    assert trained.ours[question][1] > 0
    assert trained.theirs[question][1] == 0


@pytest.mark.parametrize("question", LEFT_TO_TORCH)
def test_what_must_not_be_fused_is_left_to_torch(trained: Trained, question: str) -> None:
    calls = trained.ours[question][1]
    # a picture is fused until its parameter turns channels_last under its moments
    most = 30 if question == "memory_in_another_order" else 0
    assert calls <= most


def test_the_line_names_each_kind_of_optimizer(trained: Trained) -> None:
    for kind in ("Adam", "AdamW", "SGD", "Adagrad"):
        assert f"fused {kind} (" in trained.line


SAVE = """
import sys
import torch
sys.path.insert(0, FOLDER)
from training import *
for name, make in CASES.items():
    model = model_of()
    optimizer = make(model.parameters())
    train(model, optimizer, 5)
    torch.save([model.state_dict(), optimizer.state_dict(), optimizer], sys.argv[1] + name)
"""

CONTINUE = """
import json, sys
import torch
sys.path.insert(0, FOLDER)
from training import *
found = {}
for path, name, make in ((path, *case) for path in sys.argv[1:] for case in CASES.items()):
    weights, state, whole = torch.load(path + name, weights_only=False)
    model = model_of(7)
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(model, whole, 1)
    model.load_state_dict(weights)
    found[path + name] = [train(model, optimizer, 5, seed=3), shape(optimizer.state_dict())]
print(json.dumps(found))
"""


def test_checkpoints_continue_both_ways(tmp_path: Path) -> None:
    folder = repr(os.path.dirname(SCRIPT))
    script(tmp_path, SAVE.replace("FOLDER", folder), "save.py")
    script(tmp_path, CONTINUE.replace("FOLDER", folder), "continue.py")
    for saver, save in {"ours": launch, "theirs": plain}.items():
        (tmp_path / saver).mkdir()
        assert save(tmp_path, "save.py", f"{saver}/", OMP_NUM_THREADS="1").returncode == 0
    expected = None
    for load in (plain, launch):
        done = load(tmp_path, "continue.py", "ours/", "theirs/", OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        expected = expected or {name: value for name, value in found.items() if "theirs/" in name}
        for name, answer in found.items():
            assert alike(answer, expected[name.replace("ours/", "theirs/")]), (load, name)


UNDO = """
import sys
import torch
from cputrain.runtime import fused
from cputrain.settings import flush_denormals, fused_optimizer, loader, loader_cores
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as kind
from cputrain.runtime.fused_kernels import KERNELS
modules = [sys.modules[f"torch.optim.{kernel.name}"] for kernel in KERNELS]
def functions():
    return [
        getattr(module, name)
        for module, kernel in zip(modules, KERNELS)
        for name in (kernel.name, f"_single_tensor_{kernel.name}", fused.CHOICE_FUNCTION)
    ]
def private(found):
    return [one for place, one in enumerate(found) if place % 3]
before = functions()
assert not any("cputrain" in found.__code__.co_filename for found in before)
applied = fused_optimizer.SETTING.apply(torch, True)
assert not set(private(before)) & set(private(functions()))
assert before[::3] == functions()[::3]  # what is public stays torch's
applied.undo()
assert before == functions()
parameter = torch.nn.Parameter(torch.ones(3))
parameter.grad = torch.ones(3)
torch.optim.Adam([parameter]).step()
assert applied.describe() == ""
own = kind._reset
placed = loader_cores.SETTING.apply(
    torch, loader_cores.WorkerCores(cpus=(0,), compute_threads=1)
)
assert kind._reset is not own
placed.undo()
assert kind._reset is own
torchs = torch.utils.data.DataLoader._get_iterator
replaced = loader.SETTING.apply(torch, True)
assert torch.utils.data.DataLoader._get_iterator is not torchs
replaced.undo()
assert torch.utils.data.DataLoader._get_iterator is torchs
tiny = torch.tensor(1e-39)
flushed = flush_denormals.SETTING.apply(torch, True)
assert (tiny * 1.0).item() == 0
flushed.undo()
assert (tiny * 1.0).item() != 0
for module in (fused_optimizer, flush_denormals, loader):
    assert module.SETTING.apply(torch, False) is None
"""


def test_off_means_off_and_undoing_puts_back_what_was_there(tmp_path: Path) -> None:
    script(tmp_path, UNDO)
    done = launch(tmp_path, "--fused-optimizer", "off", "--flush-denormals", "off", "x.py")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "fused" not in done.stderr
    assert "denormals" not in done.stderr


@pytest.mark.parametrize(
    ("num_small", "num_threads", "sizes_of_calls"),
    [(7, 16, [8]), (8, 4, [9]), (8, 8, [8, 1]), (40, 2, [40, 1])],
)
def test_small_tensors_get_a_call_of_their_own_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, num_small: int, num_threads: int, sizes_of_calls: list[int]
) -> None:
    params = [torch.ones(4, requires_grad=True) for _ in range(num_small)]
    params.append(torch.ones(50_000, requires_grad=True))
    sizes: list[int] = []
    kernel = torch._fused_adam_

    def fused_adam(params: Any, *lists: Any, **options: Any) -> None:
        sizes.append(len(params))
        kernel(params, *lists, **options)

    monkeypatch.setattr(torch, "_fused_adam_", fused_adam)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    fused = FusedOptimizers(torch)
    try:
        optimizer = torch.optim.Adam(params)
        for _ in range(2):  # the first one observes what the kernel does
            sizes.clear()
            for param in params:
                param.grad = torch.ones_like(param)
            optimizer.step()
    finally:
        fused.undo()
        torch.set_num_threads(before)
    assert sizes == sizes_of_calls
    assert all(param[0].item() == pytest.approx(0.998, abs=1e-6) for param in params)


OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_threads_for_each_core_change_no_bit(name: str, dtype: torch.dtype) -> None:
    """Where torch has one thread for the sake of its bits, fused kernels may have more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    fused = FusedOptimizers(torch)
    seen: list[int] = []
    kernel = KernelThreads.exact

    @contextmanager
    def exact(threads: KernelThreads) -> Iterator[None]:
        with kernel(threads):
            seen.append(torch.get_num_threads())
            yield

    results = []
    try:
        for num_cores in (1, 2, 3, 5):
            use_cores(partial(int, num_cores))
            torch.manual_seed(0)
            sizes = [*(3 * number + 1 for number in range(30)), 32_769, 99_991, 1_100_003]
            params = [torch.randn(size, dtype=dtype) for size in sizes]
            optimizer = OPTIMIZERS[name](params)
            with pytest.MonkeyPatch.context() as monkeypatch:
                monkeypatch.setattr(KernelThreads, "exact", exact)
                for _ in range(3):
                    for param in params:
                        param.grad = torch.randn_like(param)
                    optimizer.step()
            results.append(params)
            assert torch.get_num_threads() == 1
    finally:
        use_cores(None)
        fused.undo()
        torch.set_num_threads(before)
    assert set(seen) == {1, 2, 3, 5}
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))
