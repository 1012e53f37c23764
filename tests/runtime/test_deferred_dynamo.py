"""Optimizers that do not load torch._dynamo: nothing but the start is different."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from cputrain.runtime.deferred_dynamo import _code_named, _without_needless
from tests.launch.programs import launch, plain, script
from tests.selected import some

DECORATOR = sys.modules[torch.optim.Optimizer.__module__]._use_grad_for_differentiable  # type: ignore[attr-defined]

STEPS = """
import sys, torch
def digest(kind, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = kind(model.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss
    for _ in range(4):
        loss = optimizer.step(closure)
        scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return loss.item(), model.weight.sum().item()

kinds = {name: kind for name, kind in sorted(vars(torch.optim).items())
         if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
         and kind is not torch.optim.Optimizer and name != "SparseAdam"}
for name, kind in kinds.items():
    print(name, digest(kind, lr=0.01))
print("differentiable", digest(torch.optim.SGD, lr=0.01, momentum=0.9))

class Mine(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

print("subclass", digest(Mine, lr=0.01))
print("LOADED", "torch._dynamo" in sys.modules, file=sys.stderr)
"""


def test_every_optimizer_steps_as_ever_without_the_compiler(tmp_path: Path) -> None:
    script(tmp_path, STEPS)
    theirs = plain(tmp_path, "x.py")
    ours = launch(tmp_path, "--fused-optimizer=off", "x.py")
    assert ours.stdout == theirs.stdout
    assert len(ours.stdout.splitlines()) > 12
    assert "LOADED True" in theirs.stderr
    assert "LOADED False" in ours.stderr


FAILS = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.{kind}(model.parameters(), lr=0.1)
def closure():
    raise ValueError("no loss")
{line}
"""

ERRORS = {
    "closure": "optimizer.step(closure)",
    "gradient": "model.weight.grad = torch.ones(2, 2); model.weight.grad.data = torch.ones(3); "
                "optimizer.step()",
    "arguments": "optimizer.step(1, 2, 3)",
}  # fmt: skip


@pytest.mark.parametrize("name", some(ERRORS, 1))
def test_tracebacks_are_those_of_torch(tmp_path: Path, name: str) -> None:
    script(tmp_path, FAILS.format(kind="Adam", line=ERRORS[name]))
    theirs = plain(tmp_path, "x.py").stderr
    ours = launch(tmp_path, "--quiet", "--fused-optimizer=off", "x.py").stderr
    assert "Error" in theirs
    assert ours == theirs


@pytest.mark.long
@pytest.mark.executed
def test_other_errors_lack_the_frame_of_the_compiler_alone(tmp_path: Path) -> None:
    script(tmp_path, "import torch\ntorch.optim.SGD([torch.ones(2) * 2])\n")
    text = "x = torch.ones(2, requires_grad=True) * 2\ntorch.optim.SGD([x], lr=0.1)\n"
    script(tmp_path, f"import torch\n{text}")
    theirs = plain(tmp_path, "x.py").stderr
    ours = launch(tmp_path, "--quiet", "x.py").stderr
    frames = re.compile(r'  File "[^"]*/torch/_dynamo/[^\n]*\n(?:    [^\n]*\n)+')
    assert "can't optimize a non-leaf Tensor" in theirs
    assert ours == frames.sub("", theirs)


COMPILES = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = torch.optim.SGD.step
plain = getattr(step, "__wrapped__", step)
def take():
    optimizer.zero_grad()
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    return model.weight.sum().item()
before = take()
code = plain.__code__
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
compiled = torch.compile(take, backend=backend)
print(before, compiled(), compiled(), len(graphs))
print("CHANGED", plain.__code__ is not code, plain.__code__.co_names, file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.executed
def test_a_script_that_compiles_has_torchs_own_code(tmp_path: Path) -> None:
    script(tmp_path, COMPILES)
    theirs = plain(tmp_path, "x.py")
    ours = launch(tmp_path, "--fused-optimizer=off", "x.py")
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.split()[:3] == theirs.stdout.split()[:3]
    assert "CHANGED True" in ours.stderr
    assert "graph_break" in ours.stderr


RECORDED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(300):
    optimizer.zero_grad()
    loss = model(torch.ones(64, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.executed
def test_steps_are_recorded_although_the_compiler_is_loaded_only_then(tmp_path: Path) -> None:
    script(tmp_path, RECORDED)
    words = ("--record-step=auto", "--threads=1", "x.py")  # a busy machine slows one thread least
    done = launch(tmp_path, *words, PATH="none")  # no C++ compiler
    assert done.returncode == 0
    # both mean that a step was traced
    assert re.search("recorded steps|steps are no faster compiled", done.stderr), done.stderr


SET_UP = """
import sys, torch
from cputrain import setup
setup(threads=1)
step, code = torch.optim.Adamax.step, torch.optim.Adamax.step.__code__
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adamax(model.parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print("torch._dynamo" in sys.modules)
if WAY == "import":
    import torch._dynamo
else:
    print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
print("torch._dynamo" in sys.modules, step.__code__ is not code)
optimizer.step()
setup(threads=1)
optimizer.step()
"""


@pytest.mark.parametrize("way", some(["import", "compile"], 1))
def test_a_process_that_is_set_up_does_not_load_it_either(tmp_path: Path, way: str) -> None:
    script(tmp_path, SET_UP.replace("WAY", repr(way)))
    for run in (plain, launch):
        done = run(tmp_path, "x.py")
        assert done.returncode == 0, done.stderr
        *_, last = lines = done.stdout.splitlines()
        assert lines[0] == "False"
        assert last == "True True"


def test_only_needless_statements_are_left_out() -> None:
    original = DECORATOR(lambda: None).__code__
    code = _without_needless(DECORATOR.__code__, original)
    assert code is not None
    assert code.co_filename == original.co_filename
    assert code.co_qualname == original.co_qualname
    assert {"_dynamo", "graph_break"} <= set(original.co_names)
    assert "graph_break" in original.co_names
    assert not {"graph_break", "_dynamo", "torch._dynamo"} & set(code.co_names)
    lines = {line for _, _, line in original.co_lines()}
    assert {line for _, _, line in code.co_lines()} <= lines


def test_without_its_source_nothing_is_left_out() -> None:
    original = DECORATOR(lambda: None).__code__
    assert _without_needless(DECORATOR.__code__.replace(co_filename="none.py"), original) is None
    assert _without_needless(_without_needless.__code__, original) is None
    assert _code_named(compile("def f(): pass", "x", "exec"), original) is None
