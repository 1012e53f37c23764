"""Loops as they stand: recorded or not, a script's numbers, gradients and errors are the same."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import random
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import cputrain.step.recorded.recorder as module
from cputrain.runtime.recorded_steps import RecordedSteps
from cputrain.step.compiled_step import find_cpp_compiler
from cputrain.step.contest import Contest
from cputrain.step.recorded.recorder import Recorder
from tests.selected import some

NUM_STEPS = 40


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = torch.tanh(self.body(x))
        return self.left(hidden), {"value": self.right(hidden)}


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)  # with one, its gradients were rounding errors
        self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module] = nn.GRU, directions: int = 1) -> None:
        super().__init__()
        self.cells = kind(2, 12, batch_first=True, bidirectional=directions == 2)
        self.head = nn.Linear(12 * directions, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.view(-1, 4, 2))[0][:, -1])  # type: ignore[no-any-return]


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "dropout": lambda: mlp(0.3), "two heads": TwoHeads, "batch norm": Normalized,
    "recurrent": Recurrent, "lstm": lambda: Recurrent(nn.LSTM, 2),
}  # fmt: skip

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: optim.Adam(parameters, 1e-2),
    "adamw": lambda parameters: optim.AdamW(parameters, 1e-2),
    "adagrad": lambda parameters: optim.Adagrad(parameters, 1e-2),
    "rmsprop": lambda parameters: optim.RMSprop(parameters, 1e-3),
    "foreach": lambda parameters: optim.Adam(parameters, 1e-2, foreach=True),
}

CHOICES: dict[str, list[Any]] = {
    "model": list(MODELS),
    "optimizer": list(OPTIMIZERS),
    "zero": ["first", "before backward", "last", "to zero", "of the model"],
    "clip": ["no", "no", "norm", "value"],
    "log": [
        "item", "detached", "before backward", "text", "accuracy", "accuracy first", "list",
        "several reads", "read at times",
    ],
    "schedule": ["no", "step", "by hand", "one cycle"],
    "extra": [
        "no", "no", "no", "no", "accumulate", "evaluate", "evaluate with gradients", "short batch",
        "exception", "copy", "save", "factor", "hook", "gradients", "retain", "freeze", "autocast",
        "penalty", "two losses", "two backwards", "no grad", "forward only", "data changes",
        "double", "train mode", "draws between", "output later", "early stop", "autocast later",
    ],
}  # fmt: skip


class Loop:
    """A training loop of some of the choices; `run` returns all that can be told of it."""

    def __init__(self, choices: dict[str, Any]) -> None:
        self.choices = choices
        self.factor = 1.0
        self.first_change = 0

    def run(self, after_step: Callable[[int], None] = lambda _: None) -> list[Any]:
        choices, extra = self.choices, self.choices["extra"]
        torch.manual_seed(3)
        model = MODELS[choices["model"]]()
        optimizer = OPTIMIZERS[choices["optimizer"]](model.parameters())
        schedulers: dict[str, Callable[[], Any]] = {
            "step": lambda: optim.lr_scheduler.StepLR(optimizer, 7, 0.8),
            "one cycle": lambda: optim.lr_scheduler.OneCycleLR(
                optimizer, 0.02, NUM_STEPS, cycle_momentum=False
            ),
        }
        scheduler = schedulers.get(choices["schedule"], lambda: None)()
        log: list[Any] = []
        total = torch.zeros(())
        kept: list[Tensor] = []
        for step in range(NUM_STEPS):
            size = 5 if extra == "short batch" and step % 6 == 5 else 16
            x, y = torch.randn(size, 8), torch.randint(4, (size,))
            if choices["zero"] == "first":
                optimizer.zero_grad()
            try:
                output = self.forward(model, x, step)
            except KeyError:
                log.append("exception")
                continue
            if extra == "draws between":
                log.append(torch.rand(()).item())
            if extra == "data changes" and step > 20:
                y.random_(4)
            logits = output[0] if isinstance(output, tuple) else output
            if choices["log"] == "several reads":
                log.append(float(logits.detach().abs().mean()))
            with torch.autocast("cpu", enabled=extra == "autocast later" and step > 20):
                loss = self.loss(model, output, y)
                if extra == "autocast later":
                    log.append(str(F.linear(logits, torch.ones(3, 4)).dtype))
            if choices["log"] == "several reads":
                log.append(loss.item())
                with torch.no_grad():
                    log.append(float((logits.argmax(1) == y).float().mean().cpu().numpy()))
            if choices["log"] == "read at times" and step % 5 == 4:
                log.append(f"{loss:.2f}")
                log.append(logits.argmax(1).tolist())
            if choices["log"] == "before backward":
                log.append(loss.item())
            if choices["log"] == "accuracy first":
                log.append((logits.argmax(1) == y).float().mean().item())
            if choices["zero"] == "before backward":
                optimizer.zero_grad()
            elif choices["zero"] == "to zero":
                optimizer.zero_grad(set_to_none=False)
            elif choices["zero"] == "of the model":
                model.zero_grad()
            if extra == "weights change" and step >= self.first_change:
                with torch.no_grad():
                    next(model.parameters()).mul_(1.0)
            if extra == "retain" and step == 25:
                loss.backward(retain_graph=True)
            if extra == "two losses":
                (loss * 0.5).backward()
            elif extra == "forward only" and step % 5 == 4:
                continue
            else:
                try:
                    loss.backward()
                except RuntimeError as error:
                    log.append(str(error)[:90])
            if extra == "two backwards" and step == 25:
                with pytest.raises(RuntimeError, match="a second time"):
                    loss.backward()
            if choices["clip"] == "norm":
                log.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            elif choices["clip"] == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
            if extra == "gradients" and step > 15:
                log.append(
                    sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)
                )
            if extra != "accumulate" or step % 3 == 2:
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
            if scheduler is not None:
                log.append(scheduler.get_last_lr())
            elif choices["schedule"] == "by hand":
                optimizer.param_groups[0]["lr"] *= 0.97
            if choices["log"] == "item":
                log.append(loss.item())
            elif choices["log"] == "detached":
                total += loss.detach()
            elif choices["log"] == "text":
                log.append(f"{loss:.3f} {tuple(loss.shape)} {loss.requires_grad} {loss.is_leaf}")
                log.append(type(loss.grad_fn).__name__)
            elif choices["log"] == "accuracy":
                log.append((logits.argmax(1) == y).sum().item() / len(y))
            elif choices["log"] == "list":
                kept.append(loss)
            if extra == "output later":
                log.append(torch.softmax(logits, 1).max().item())
            if choices["zero"] == "last":
                optimizer.zero_grad()
            self.between(model, optimizer, step, log)
            if extra == "early stop" and step == 30:
                break
            after_step(step)
        log += [value.item() for value in kept]
        state = optimizer.state_dict()["state"]
        return [
            *log, total.item(), *(tensor.clone() for tensor in model.state_dict().values()),
            *(None if p.grad is None else p.grad.clone() for p in model.parameters()),
            *(value for values in state.values() for value in values.values()),
            torch.get_rng_state(),
        ]  # fmt: skip

    def forward(self, model: nn.Module, x: Tensor, step: int) -> Any:
        extra = self.choices["extra"]
        if extra == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(x)
        output = model(x)
        if extra == "exception" and step % 9 == 8:
            raise KeyError(step)
        if extra == "double":
            model(x * 0.5)
        if extra == "train mode" and step % 10 == 9:
            model.eval()
            model.train()
        return output

    def loss(self, model: nn.Module, output: Any, y: Tensor) -> Tensor:
        extra = self.choices["extra"]
        if isinstance(output, tuple):
            loss = F.cross_entropy(output[0], y) + 0.5 * output[1]["value"].square().mean()
        else:
            loss = nn.CrossEntropyLoss(label_smoothing=0.1)(output.float(), y)
        if extra == "factor":
            loss = loss * self.factor
        if extra == "penalty":
            loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters())
        return loss

    def between(
        self, model: nn.Module, optimizer: optim.Optimizer, step: int, log: list[Any]
    ) -> None:
        extra = self.choices["extra"]
        if extra.startswith("evaluate") and step % 8 == 7:
            model.eval()
            with torch.set_grad_enabled(extra != "evaluate"):
                output = model(torch.ones(3, 8))
            output = output[0] if isinstance(output, tuple) else output
            log.append(output.sum().item())
            model.train()
        elif extra == "copy" and step % 10 == 9:
            log.append(float(sum(p.detach().sum() for p in copy.deepcopy(model).parameters())))
        elif extra == "save" and step % 10 == 9:
            file = io.BytesIO()
            torch.save([model, optimizer.state_dict()], file)
            file.seek(0)
            log.append(len(torch.load(file, weights_only=False)))
        elif extra == "factor" and step == 20:
            self.factor = 2.0
        elif extra == "hook" and step == 20:
            model.register_forward_hook(lambda *_: log.append("called"))
        elif extra == "freeze" and step == 20:
            next(model.parameters()).requires_grad_(False)
        elif extra == "no grad" and step % 8 == 7:
            with torch.no_grad():
                next(model.parameters()).mul_(0.9)


@contextmanager
def recorded_steps() -> Iterator[RecordedSteps]:
    """Record the steps of loops within the block."""
    steps = RecordedSteps(torch)
    try:
        yield steps
    finally:
        steps.undo()


def run_recorded(loop: Loop) -> tuple[list[Any], Recorder]:
    with recorded_steps() as steps:
        return loop.run(lambda _: steps.recorder.wait()), steps.recorder


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for value, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, Tensor) and wanted.is_floating_point():
            torch.testing.assert_close(value, wanted, rtol=2e-4, atol=2e-5)
        elif isinstance(wanted, Tensor):
            assert torch.equal(value, wanted)
        elif isinstance(wanted, float):
            assert value == pytest.approx(wanted, rel=2e-4, abs=2e-5)
        else:
            assert value == wanted


def draw(seed: int) -> dict[str, Any]:
    draws = random.Random(seed)
    return {name: draws.choice(values) for name, values in CHOICES.items()}


RECORDED = {"no", "factor", "short batch", "evaluate", "copy", "save", "output later"}
"""What does not keep a loop from being recorded, whatever else it does."""


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed > 3 else ()) for seed in range(60)]
)
def test_a_loop_is_the_same(seed: int) -> None:
    choices = draw(seed)
    expected = Loop(choices).run()
    found, recorder = run_recorded(Loop(choices))
    assert_same(found, expected)
    if choices["extra"] in RECORDED:
        assert recorder.num_compiled > NUM_STEPS // 3, (choices, recorder.end_reason)


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("extra", some(CHOICES["extra"][3:], 8))
@pytest.mark.parametrize("name", ["mlp", "dropout", "batch norm"])
def test_each_event_is_the_same(name: str, extra: str) -> None:
    choices = {
        "model": name, "optimizer": "adam", "zero": "first", "clip": "no", "log": "item",
        "schedule": "no", "extra": extra,
    }  # fmt: skip
    expected = Loop(choices).run()
    found, _ = run_recorded(Loop(choices))
    assert_same(found, expected)


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("log", ["several reads", "read at times", "accuracy first"])
@pytest.mark.parametrize("name", some(MODELS, 3))
def test_results_may_be_read_before_the_loss_is_complete(name: str, log: str) -> None:
    choices = PLAIN | {"model": name, "optimizer": "adam", "log": log}
    found, recorder = run_recorded(Loop(choices))
    assert_same(found, Loop(choices).run())
    assert recorder.num_compiled > NUM_STEPS // 2, recorder.end_reason


PLAIN = {
    "model": "mlp", "optimizer": "sgd", "zero": "first", "clip": "no", "log": "item",
    "schedule": "no", "extra": "no",
}  # fmt: skip


@pytest.mark.usefixtures("_replayed")
def test_weights_that_change_before_backward_are_not_recorded() -> None:
    choices = PLAIN | {"extra": "weights change"}
    found, recorder = run_recorded(Loop(choices))
    assert_same(found, Loop(choices).run())
    assert not recorder.num_compiled
    assert "changed between the model's call and backward" in recorder.end_reason


@pytest.mark.usefixtures("_replayed")
def test_weights_that_change_only_later_are_an_error() -> None:
    loop = Loop(PLAIN | {"extra": "weights change"})
    loop.first_change = 20
    found, _ = run_recorded(loop)
    assert any("modified by an inplace operation" in str(value) for value in found)


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_a_fused_kernel_take_their_steps_by_it(name: str) -> None:
    choices = PLAIN | {"optimizer": name}
    expected = Loop(choices).run()
    with recorded_steps() as steps:
        found = Loop(choices).run()
        num_fused = steps._updates.num_fused
    assert_same(found, expected)
    assert (num_fused > NUM_STEPS // 2) is (name in {"momentum", "adam", "adamw", "adagrad"})


@pytest.mark.parametrize("kind", ["mlp", "dropout", "two heads", "batch norm", "recurrent"])
@pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")
@pytest.mark.long
def test_compiled_loops_are_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Contest, "end", lambda _: False)
    monkeypatch.setattr(module.Contest, "begin", lambda _: True)
    choices = PLAIN | {"model": kind, "optimizer": "adamw", "clip": "norm", "schedule": "step"}
    found, recorder = run_recorded(Loop(choices))
    assert_same(found, Loop(choices).run())
    assert recorder.num_compiled > NUM_STEPS // 4, recorder.end_reason


class Effects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count, self.kept = nn.Linear(4, 4), 0, [torch.zeros(4)]
        self.by_name = {"last": torch.zeros(4)}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Prints(Effects):
    def forward(self, x: Tensor) -> Tensor:
        print("called")
        return super().forward(x)


class Counts(Effects):
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


class Appends(Effects):
    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x.sum(0))
        return super().forward(x)


class Keeps(Effects):
    def forward(self, x: Tensor) -> Tensor:
        self.by_name["last"] = x.sum(0)
        return super().forward(x)


class Inherits(Prints):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Overrides(Effects):
    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x) * self.factor

    def scaled(self, x: Tensor) -> Tensor:
        return super().forward(x)

    @property
    def factor(self) -> int:
        return 1


class OverridesMethod(Overrides):
    def scaled(self, x: Tensor) -> Tensor:
        print("scaled")
        return super().scaled(x)


class OverridesProperty(Overrides):
    @property
    def factor(self) -> int:
        print("asked")
        return 2


class Static(Effects):
    def forward(self, x: Tensor) -> Tensor:
        return self.told(super().forward(x))

    @staticmethod
    def told(x: Tensor) -> Tensor:
        print("told")
        return x


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize(
    "kind",
    [
        Prints, Counts, Appends, Keeps, Inherits, OverridesMethod, OverridesProperty, Static,
    ],
)  # fmt: skip
def test_forwards_with_effects_are_called(
    kind: type[Effects], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = kind()
        optimizer = optim.SGD(model.parameters(), 0.1)
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
        kept = [tensor.tolist() for tensor in (*model.kept, *model.by_name.values())]
        return model.count, kept, model.layer.weight.tolist(), capsys.readouterr().out

    expected = run()
    with recorded_steps() as steps:
        assert run() == expected
        assert steps.recorder.end_reason


@pytest.mark.usefixtures("_replayed")
def test_errors_are_those_of_torch() -> None:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), 0.1)
    with recorded_steps() as steps:
        for step in range(30):
            optimizer.zero_grad()
            targets = torch.full((16,), 7 if step == 20 else 1)
            if step in {20, 22}:
                size = 8 if step == 20 else 9
                with pytest.raises((IndexError, RuntimeError), match=r"out of bounds|shapes"):
                    F.cross_entropy(model(torch.ones(16, size)), targets).backward()
                continue
            F.cross_entropy(model(torch.ones(16, 8)), targets).backward()
            optimizer.step()
        assert steps.recorder.num_compiled > 15


@pytest.mark.long
def test_what_the_script_does_while_inductor_compiles_is_as_without() -> None:
    from torch.fx._symbolic_trace import is_fx_tracing

    from cputrain.step.background import compile_in_background
    from cputrain.step.script_values import ScriptValues
    from cputrain.step.traced_step import trace

    graph = trace(lambda x: (x.sin(),), [torch.ones(3)], ScriptValues((), ()))
    torch.manual_seed(0)
    expected = [torch.rand(()).item() for _ in range(20_000)]
    torch.manual_seed(0)
    future = compile_in_background(graph, [torch.ones(3)])
    found = []
    while not future.done():
        found.append(torch.rand(()).item())
        assert not is_fx_tracing()  # as what torch.compile returned would refuse to be called
        torch.fx.symbolic_trace(nn.Tanh())
        time.sleep(0.01)
    assert found == expected[: len(found)]
    assert torch.rand(()).item() == expected[len(found)]


@pytest.mark.parametrize("slower", [True, False])
def test_recording_ends_where_compiled_steps_are_slower(
    slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("cputrain.step.contest.time.perf_counter", lambda: now[0])
    contest = Contest()
    has_lost = False
    for _ in range(100):
        is_compiled = contest.begin()
        assert contest.begin() is is_compiled  # another call of a model in the same step
        now[0] += 2.0 if is_compiled is slower else 1.0
        has_lost = has_lost or contest.end()
        if contest.is_over:
            break
    assert contest.is_over
    assert has_lost is slower


SCRIPT = """
import sys
import time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters())
end = time.monotonic() + 90
step = 0


def is_enough():
    recorded = sys.modules.get("cputrain.step.recorded.deferred")
    if recorded is None or time.monotonic() > end:
        return True
    recorder = recorded.DeferredTensor.call.__self__
    return recorder.num_compiled > 100 or bool(recorder.end_reason)


while step <= 2000 or not is_enough():
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), inputs.argmax(1) % 4)
    loss.backward()
    optimizer.step()
    step += 1
    if step in {1, 100, 2000}:
        print(step, f"{loss:.4f}", loss)
print(type(loss.grad_fn).__name__, model[0].weight.grad is not None)
"""


@pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")
@pytest.mark.long
def test_a_script_prints_the_same_under_launch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    outputs = []
    script.write_text(SCRIPT)
    for command in (
        [sys.executable],
        [sys.executable, "-P", "-m", "cputrain.launch", "launch", "--record-step", "auto"],
    ):
        done = subprocess.run(
            [*command, str(script)], capture_output=True, text=True, timeout=120, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    # on a busy machine, compiled steps may not win
    expected = r"recorded steps \(\d+ backward passes\)|steps are no faster compiled"
    assert re.search(expected, done.stderr), done.stderr


BRIEF = """
import sys, torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(sys.modules["cputrain.step.recorded.deferred"].DeferredTensor.call.__self__.num_seen)
"""


@pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")
def test_a_script_that_is_soon_over_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BRIEF)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "launch", "--record-step=auto", str(path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert "recorded" not in done.stderr


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
        self.factors = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.left + self.right + (self.factors * x).sum(0)


@pytest.mark.usefixtures("_replayed")
def test_gradients_have_memory_of_their_own() -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        model = Sums()
        optimizer = optim.SGD(model.parameters(), 0.1)
        seen: list[Any] = []
        for _ in range(20):
            optimizer.zero_grad()
            x = torch.randn(3, 4)
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            seen += [x.tolist(), *(parameter.tolist() for parameter in model.parameters())]
        return seen

    expected = run()
    with recorded_steps() as steps:
        assert run() == expected
        assert steps.recorder.num_compiled > 10, steps.recorder.end_reason


@pytest.mark.usefixtures("_replayed")
def test_a_loss_may_be_read_in_another_thread() -> None:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), 0.0)
    x = torch.randn(5, 8)
    expected = model(x).square().mean().item()
    with recorded_steps() as steps:
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            seen: list[float] = []
            thread = threading.Thread(target=lambda loss=loss, seen=seen: seen.append(loss.item()))
            if steps.recorder.num_compiled > 5:
                thread.start()
                thread.join()
                assert seen == [pytest.approx(expected)]
            loss.backward()
            optimizer.step()
        assert steps.recorder.num_compiled > 5


QUESTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "equal": lambda output, x: torch.equal(output, x[:, :4]),
    "equal, the other way round": lambda output, x: torch.equal(x[:, :4], output),
    "allclose": lambda output, x: torch.allclose(output, x[:, :4] + output),
    "contains": lambda output, _: 0.5 in output,
    "length": lambda output, _: len(output),
    "numpy": lambda output, _: output.detach().numpy().sum().item() > 0,
    "list": lambda output, _: output.tolist()[0][0] > 0,
    "text": lambda output, _: str(output)[:12] + repr(output.detach())[:12],
    "bool": lambda output, _: bool((output > 0).all()),
    "where": lambda output, _: torch.where(output > 0)[0].numel(),
    "nonzero": lambda output, _: len(torch.nonzero(output > 0.1)),
    "unique": lambda output, _: len(torch.unique(output.round())),
    "isnan": lambda output, _: torch.isnan(output).any().item(),
    "max": lambda output, _: torch.max(output, 1).indices.tolist(),
    "mask": lambda output, _: output[output > 0].shape[0],
    "grad_fn": lambda output, _: type(output.grad_fn).__name__,
    "is tensor": lambda output, _: isinstance(output, Tensor) and torch.is_tensor(output),
    "version": lambda output, _: output._version,
    "add in place": lambda output, x: x.add_(output.detach()[:, :1]).sum().item(),
    "out": lambda output, _: torch.sum(output, 0, out=torch.zeros(4)).tolist(),
    "iterate": lambda output, _: [row.sum().item() for row in output],
    "hash": lambda output, _: output in {output: 1},
}


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("name", some(QUESTIONS, 8))
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_questions_are_answered_as_without_recording(name: str, is_before: bool) -> None:
    def run(start: int) -> list[Any]:
        torch.manual_seed(0)
        model = mlp()
        optimizer = optim.SGD(model.parameters(), 0.3)
        answers: list[Any] = []
        for step in range(30):
            x = torch.randn(6, 8)
            optimizer.zero_grad()
            output = model(x)
            try:
                if is_before and step >= start:
                    answers.append(QUESTIONS[name](output, x))
                loss = output.square().mean()
                loss.backward()
                optimizer.step()
                if not is_before and step >= start:
                    answers.append(QUESTIONS[name](output, x))
            except RuntimeError as error:
                answers.append(str(error)[:30])
        return [answers, *(parameter.tolist() for parameter in model.parameters())]

    for start in (0, 12):
        expected = run(start)
        with recorded_steps():
            assert run(start) == expected


def test_modules_of_the_script_are_not_patched_while_inductor_compiles() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from cputrain.step.background import _beside_script

    call, seen = nn.Module.__call__, []

    def function(x: Tensor) -> Tensor:
        seen.append(nn.Module.__call__)
        return x.cos()

    make_fx(function)(torch.ones(3))
    with _beside_script():
        make_fx(function)(torch.ones(3))
    assert seen[0] is not call  # as torch has it
    assert seen[1] is call


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of what does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.cos()


def dlpack(tensor: Tensor) -> Tensor:
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.detach()))


USES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensor": lambda _, loss: torch.tensor(loss.detach()),
    "tensor of a list": lambda _, loss: torch.tensor([loss, 2.0]),
    "as_tensor": lambda output, _: torch.as_tensor(output.detach()) * 1.0,
    "asarray": lambda output, _: torch.asarray(output.detach()) * 1.0,
    "scalar_tensor": lambda _, loss: torch.scalar_tensor(loss.detach()),
    "full": lambda _, loss: torch.full((2,), loss.detach()),
    "arange": lambda output, _: torch.arange(output.detach().abs().sum().long()),
    "sparse": lambda output, _: torch.sparse_coo_tensor(
        torch.tensor([[0, 1]]), output.detach()[0, :2], (4,)
    ).to_dense(),
    "new_tensor": lambda output, loss: torch.ones(2).new_tensor([loss, output.detach()[0, 0]]),
    "new_full": lambda _, loss: torch.ones(2).new_full((3,), loss.detach()),
    "set_": lambda output, _: torch.ones(2).set_(output.detach()).clone(),
    "dlpack": lambda output, _: dlpack(output).clone(),
    "numpy": lambda output, loss: [np.asarray(output.detach()) + 0, np.mean([loss.detach()] * 2)],
    "parameter": lambda output, _: nn.Parameter(output.detach().mean(0)).sum(),
    "function": lambda output, _: Straight.apply(output * 3).sum(),
    "gradient": lambda output, loss: torch.autograd.grad(loss, output, retain_graph=True),
    "of a list": lambda output, loss: [max([loss, loss * 2]), sum([loss, output.sum()])],
    "math": lambda _, loss: [math.sqrt(loss), abs(loss), loss < 3, range(int(loss) + 2)],
    "iterated": lambda output, _: [row.sum() for row in output],
    "vmap": lambda output, _: torch.func.vmap(torch.sum)(output),
    "checkpoint": lambda output, _: checkpoint(torch.tanh, output, use_reentrant=True).sum(),
    "scripted": lambda output, _: torch.jit.script(nn.Softplus())(output),
    "type": lambda output, _: [output.type(), isinstance(output, Tensor), torch.is_tensor(output)],
    "storage": lambda output, _: output.detach().untyped_storage().nbytes(),
    "copied": lambda output, _: copy.copy(output.detach()),
    "pickled": lambda output, _: pickle.loads(pickle.dumps(output.detach())),
    "shared": lambda output, _: output.detach().clone().share_memory_(),
    "indexed": lambda output, _: torch.arange(9)[output.argmax(1)],
    "size": lambda output, _: torch.zeros(output.argmax(1)[0] + 1),
}  # fmt: skip


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, Tensor):
        return [value.requires_grad, tuple(value.shape), value.tolist()]
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", some(USES, 10))
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_functions_in_c_read_is_there(name: str, is_first: bool) -> None:
    """Between the model's call and backward, in every step or for the first time in the 25th."""

    def run(wait: Callable[[], None] = lambda: None) -> list[Any]:
        torch.manual_seed(0)
        model = mlp()
        optimizer = optim.SGD(model.parameters(), 0.1)
        log = []
        for step in range(30):
            optimizer.zero_grad()
            output = model(torch.randn(6, 8))
            loss = output.square().mean()
            if is_first or step >= 25:
                log.append(plain(USES[name](output, loss)))
            loss.backward()
            optimizer.step()
            log.append(loss.item())
            wait()
        return log

    expected = run()
    with recorded_steps() as steps:
        found = run(steps.recorder.wait)
        assert str(type(nn.Parameter(torch.ones(2)))) == str(nn.Parameter)
    assert_near(found, expected)
    assert is_first or steps.recorder.num_compiled > 15, steps.recorder.end_reason


def assert_near(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for member, wanted in zip(found, expected, strict=True):
            assert_near(member, wanted)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-4, abs=2e-5)
    else:
        assert found == expected


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("num_steps", [2, 12])
def test_models_that_the_script_lets_go_are_let_go(num_steps: int) -> None:
    with recorded_steps() as steps:
        for _ in range(3):
            model = mlp()
            optimizer = optim.Adam(model.parameters())
            for _ in range(num_steps):
                loss = model(torch.randn(6, 8)).square().mean()
                loss.backward()
                optimizer.step()
            model(torch.randn(6, 8))
            references = [weakref.ref(model), weakref.ref(model[0].weight)]  # type: ignore[index]
            del model, optimizer, loss
            gc.collect()
            assert [reference() for reference in references] == [None, None]
        assert num_steps == 2 or steps.recorder.num_compiled > 15


@pytest.mark.usefixtures("_replayed")
def test_backward_of_torch_autograd_is_that_of_a_tensor() -> None:
    def run() -> list[float]:
        torch.manual_seed(0)
        model = mlp()
        optimizer = optim.SGD(model.parameters(), 0.1)
        losses = []
        for step in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(6, 8)).square().mean()
            if step % 5 == 4:
                torch.autograd.backward([loss])
            else:
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = run()
    with recorded_steps() as steps:
        assert run() == pytest.approx(expected, rel=1e-4)
        assert steps.recorder.num_compiled > 10


class Triples(TorchFunctionMode):
    """Multiplies products by three, which tells whether they were computed in it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 3 if func in {torch.mul, Tensor.mul, F.linear} else result


MODES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
    "function mode": Triples,
    "anomalies": torch.autograd.detect_anomaly,
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
}


@pytest.mark.usefixtures("_replayed")
@pytest.mark.parametrize("place", ["loss", "metric", "backward", "step"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Converting a tensor")
def test_modes_hold_for_the_calls_within_them(name: str, place: str) -> None:
    """Deferred calls, too, are made as they were written, in whatever mode they are needed."""

    def mode(at: str, step: int) -> Any:
        return MODES[name]() if at == place and step >= 20 else nullcontext()

    def run() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = optim.SGD(model.parameters(), 0.05)
        log: list[Any] = []
        for step in range(30):
            with mode("step", step):
                optimizer.zero_grad()
                output = model(torch.randn(6, 8))
                loss = output.square().mean()
                with mode("loss", step):
                    extra = F.linear(output, torch.full((3, 4), 1.01)).float().sum() * 1e-3
                log += [str(extra.dtype), extra.requires_grad]
                if extra.requires_grad:
                    loss = loss + extra
                with mode("metric", step):
                    size = torch.mul(output, output).sum()
                log += [str(size.dtype), size.requires_grad, size.item()]
                del size
                with mode("backward", step):
                    try:
                        loss.backward()
                    except RuntimeError as error:
                        log.append(str(error)[:60])
                optimizer.step()
                log.append(float(loss))
        return log

    expected = run()
    with recorded_steps() as steps:
        assert_near(run(), expected)
    assert steps.recorder.num_compiled > 10, steps.recorder.end_reason


@pytest.mark.usefixtures("_replayed")
def test_an_episode_of_calls_is_left_alone() -> None:
    """A policy that acts until the end of an episode: calls until backward are hundreds."""

    model = mlp()

    def run() -> list[float]:
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        optimizer = optim.SGD(model.parameters(), 0.01)
        losses = []
        for episode in range(4):
            terms = [model(torch.randn(1, 8)).log_softmax(1)[0, 0] for _ in range(150 + episode)]
            loss = -torch.stack(terms).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected = run()
    with recorded_steps() as steps:
        assert run() == expected
        assert max(map(depth, steps.recorder._roots.values())) == module.MAX_CALLS


def depth(path: Any) -> int:
    deepest = 0
    waiting = [path]
    while waiting:
        path = waiting.pop()
        deepest = max(deepest, path.num_calls)
        waiting += path.children.values()
    return deepest


@pytest.mark.usefixtures("_replayed")
def test_batches_of_ever_other_sizes_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PATHS", 50)
    model = mlp()
    optimizer = optim.SGD(model.parameters(), 0.01)
    with recorded_steps() as steps:
        for step in range(200):
            model(torch.randn(5 if step % 3 else step + 6, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert steps.recorder.num_compiled > 60
        [root] = steps.recorder._roots.values()
        assert len(root.children) < 30
