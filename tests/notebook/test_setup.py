"""`cputrain.setup` in a running interpreter: what it changes, what it says, what it undoes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import cputrain
from cputrain.errors import UsageError
from cputrain.settings.core.registry import SETTINGS
from tests.launch.programs import launch, plain, script

TRAIN = '''
import resource, torch
from torch import nn

def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 2, 8, 8), torch.randn(64, 2))
    losses = []
    for _ in range(3):
        for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses

def faults():
    """Page faults of a tensor of 64 MiB, once malloc has found a place for it."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])  # its steps say that it trains
    for step in range(30):
        optimizer.step()
        if step == 20:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(1 << 24).fill_(1.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def effects(setup):
    return {step.policy: str(step.effect) for step in setup.steps}
'''


def said(folder: Path, text: str, *, start: Any = plain, **changes: str) -> Any:
    """What a script prints as JSON, and nothing on standard error."""
    done = start(folder, str(script(folder, TRAIN + text)), **changes)
    assert done.returncode == 0, done.stderr
    assert start is not plain or done.stderr == ""
    return json.loads(done.stdout)


def test_training_learns_the_same_and_is_told_about(tmp_path: Path) -> None:
    found = said(
        tmp_path,
        """
import cputrain, json
before = train()
setup = cputrain.setup(channels_last=True)
print(json.dumps([before, train(), setup.so_far(), effects(setup), str(setup)]))
""",
    )
    before, after, met, effects, text = found
    assert after == pytest.approx(before, rel=1e-4)
    assert {"fused Adam (4 tensors)", "1 convolution channels last"} <= set(met)
    assert "data loaders: 3 gathered from memory" in met
    assert list(effects) == list(SETTINGS)
    assert {name for name, effect in effects.items() if effect == "applied"} >= {
        "fused_optimizer", "loader", "channels_last", "allocator",
    }  # fmt: skip
    assert "fused optimizers" in text
    assert all(
        name.replace("_", " ") in text or effect in ("applied", "already so", "nothing to do")
        for name, effect in effects.items()
    )


def test_memory_that_training_frees_is_kept_until_it_is_to_be_as_before(tmp_path: Path) -> None:
    plain_faults, faults, kept, given_back, again = said(
        tmp_path,
        """
import cputrain, json
found = [faults()]
cputrain.setup(allocator="tuned")
found += [faults(), resident()]
cputrain.setup(allocator="default")
found += [resident()]
cputrain.setup()
print(json.dumps([*found, faults()]))
""",
    )
    assert faults * 10 < plain_faults
    assert kept - given_back > 32 << 20
    assert again * 10 < plain_faults


UNDONE = """
import cputrain, json, multiprocessing, os, sys, torch
from torch.utils.data import DataLoader, dataloader

def places():
    worker = dataloader._MultiProcessingDataLoaderIter
    functions = [
        torch.nn.Module.__call__, sys.modules["torch.optim.adam"].adam, DataLoader._get_iterator,
        torch.nn.functional.scaled_dot_product_attention, worker._reset, worker._shutdown_workers,
        torch.Tensor.view,
    ]
    return [
        *map(id, functions), multiprocessing.get_start_method(allow_none=True),
        torch.get_num_threads(), os.sched_getaffinity(0),
    ]

wishes = dict(channels_last=True, compile=True, attention="float32", start_method="spawn",
              threads=1, placement=sorted(os.sched_getaffinity(0))[:1])
own = places()
first = cputrain.setup(**wishes)
ours = places()
second = cputrain.setup(**wishes)
twice = places()
cputrain.setup()
cputrain.setup(loader=False, fused_optimizer=False, short_waits=False, flush_denormals=False,
               c_kernels=False)
print(json.dumps([
    [a != b for a, b in zip(own, ours)], ours == twice, effects(second), own == places(),
    (torch.tensor([1e-38]) * 0.1).item() > 0,
]))
"""


def test_called_again_it_puts_one_plan_in_the_place_of_the_other(tmp_path: Path) -> None:
    """Nothing is exchanged twice, and what is not wanted any more is as torch made it."""
    changed, same, effects, undone, denormals = said(tmp_path, UNDONE)
    assert sum(changed) >= 8, changed
    assert same
    assert set(effects.values()) <= {"already so", "nothing to do", "not applied"}
    assert undone
    assert denormals


def test_denormals_are_flushed_in_threads_that_run_already(tmp_path: Path) -> None:
    before, after, off = said(
        tmp_path,
        """
import cputrain, json
small = torch.full((1 << 20,), 1e-38)
kept = lambda: int((small * 0.01 != 0).sum())
found = [kept()]
for choice in (True, False):
    cputrain.setup(flush_denormals=choice)
    found.append(kept())
print(json.dumps(found))
""",
    )
    assert (before, after, off) == (1 << 20, 0, 1 << 20)


def test_a_mask_is_for_every_thread_there_is(tmp_path: Path) -> None:
    (first, *_), all_before, placed, all_after = said(
        tmp_path,
        """
import cputrain, json, os
torch.ones(1 << 20).add_(1)
def masks():
    threads = map(int, os.listdir("/proc/self/task"))
    return sorted({tuple(os.sched_getaffinity(one)) for one in threads})
cpus = sorted(os.sched_getaffinity(0))
found = [cpus, masks()]
cputrain.setup(placement=cpus[:1])
found.append(masks())
cputrain.setup()
print(json.dumps([*found, masks()]))
""",
    )
    assert placed == [[first]]
    assert all_after == all_before


def test_pages_are_interleaved_where_a_plan_asks(tmp_path: Path) -> None:
    """Asked of the kernel itself; a node that is not there is told."""
    assert said(
        tmp_path,
        """
import json
from cputrain.settings.core.setting import RefusedError
from cputrain.settings.memory_policy import SETTING, Interleave
def wish(*nodes):
    return SETTING.decision(Interleave(interleave=nodes), "")
def pages():
    with open("/proc/self/numa_maps") as maps:
        return sum("interleave:" in line for line in maps)
applied = SETTING.apply_now(torch, wish(0))
kept = torch.empty(1 << 26).fill_(1.0)
there = pages()
applied.undo()
del kept
try:
    SETTING.apply_now(torch, wish(1022))
except RefusedError as error:
    print(json.dumps([there > 0, pages(), str(error)[:29]]))
""",
    ) == [True, 0, "interleaved memory was refuse"]


def test_what_comes_too_late_is_told_with_what_to_type(tmp_path: Path) -> None:
    library = tmp_path / "liballocator.so"
    library.write_bytes(b"")
    found = said(
        tmp_path,
        f"""
import cputrain, json
setup = cputrain.setup(allocator={str(library)!r}, short_waits=True)
torch.set_num_interop_threads(1)
print(json.dumps([effects(setup), str(setup), effects(cputrain.setup(interop_threads=2))]))
""",
    )
    effects, text, later = found
    assert effects["allocator"] == "not applied"
    assert effects["short_waits"] == "in part"
    assert "a library can be preloaded only when a process starts" in text
    assert f"cputrain launch --allocator={library} --short-waits=on {tmp_path}/x.py" in text
    assert later["interop_threads"] in ("not applied", "nothing to do")


@pytest.mark.parametrize(
    ("before", "ours"), [("", ""), ("CPUTRAIN_THREADS", ""), ("CPUTRAIN_THREADS", "threads=1")]
)
def test_settings_have_the_precedence_that_they_have_for_a_launch(
    tmp_path: Path, before: str, ours: str
) -> None:
    """A file, then a variable, then the argument."""
    (tmp_path / "cputrain.toml").write_text('threads = "1"\nloader = false\n')
    changes = {before: "auto"} if before else {}
    threads, most, origin, loader = said(
        tmp_path,
        f"""
import cputrain, json
setup = cputrain.setup({ours})
decision = setup.plan.decision("threads")
import os
print(json.dumps([torch.get_num_threads(), decision.value, str(decision.reason),
                  setup.plan.value("loader")]))
""",
        **changes,
    )
    assert threads == most
    assert loader is False
    if ours:
        assert (threads, origin) == (1, "set by the argument threads")
    elif before:
        assert "set by" not in origin
    else:
        assert threads == 1
        assert "cputrain.toml" in origin
        assert "set by" in origin


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"threads": 0}, "the argument threads must be auto or a whole number from 1 to"),
        ({"threads": True}, "the argument threads must be auto or a whole number"),
        ({"thread": 2}, "the argument thread is not a setting of cputrain"),
        ({"thread": 2}, "Did you mean threads?"),
        ({"compile": "maybe"}, "the argument compile must be one of auto, on, off; found 'maybe'"),
        ({"threads": 1.5}, "the argument threads must be a string, a whole number"),
        ({"placement": [1 << 20]}, "Say for example placement="),
        ({"allocator": "nothing"}, "the argument allocator must be auto, tuned, default"),
        ({"allocator": "/no/such.so"}, "allocator must be the path of a library"),
    ],
)
def test_a_setting_that_breaks_a_rule_is_named_as_it_was_given(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        cputrain.setup(**settings)
    assert says in str(caught.value)
    assert "--" not in str(caught.value)


def test_under_a_launch_only_what_differs_is_done(tmp_path: Path) -> None:
    path = script(tmp_path, TRAIN + """
import cputrain, json
import sys
adam = sys.modules["torch.optim.adam"]
first, wrapped = cputrain.setup(), adam.adam
second = cputrain.setup(threads=1)
same = adam.adam is wrapped
train()
print(json.dumps([first.launched, effects(first), effects(second), same, str(first)]))
cputrain.setup(loader=False)
""")  # fmt: skip
    done = launch(tmp_path, "--interop-threads=1", str(path))
    launched, first, second, same, text = json.loads(done.stdout)
    assert launched
    assert "already so (under cputrain launch)" in text
    assert set(first.values()) == {"already so", "nothing to do"}
    assert [name for name in second if second[name] != first[name]] in ([], ["threads"])
    assert same
    # the line after the run is about what holds in the end
    assert re.match(r"cputrain: \d+ threads?, 1 inter-operator thread, ", done.stderr)
    assert "data loaders" not in done.stderr


def test_a_process_on_trial_is_left_to_tune(tmp_path: Path) -> None:
    from cputrain.target import Target, TargetKind
    from cputrain.tune.trial import Script, run_trial

    path = script(tmp_path, """
import cputrain, torch
print(sorted({str(step.effect) for step in cputrain.setup(threads=1).steps}), flush=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(50):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
""")  # fmt: skip
    target = Target(kind=TargetKind.SCRIPT, name=str(path), arguments=())
    (tmp_path / "kept").mkdir()
    kept = str(tmp_path / "kept")
    made = Script(target=target, folder=kept, environment=dict(os.environ), steps=5)
    found = run_trial(made, None)
    assert found.fault == ""
    (out,) = (tmp_path / "kept").glob("*.out")
    assert out.read_text() == "['nothing to do']\n"
