"""States of Adam and AdamW in 8 bits: training, checkpoints, and all that reads a state."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from cputrain.memory import limiter
from cputrain.memory.recorder import _bytes_of
from cputrain.runtime.optimizer_states import EightBitStates, EightBitTensor
from cputrain.runtime.state import NOW
from cputrain.settings.optimizer_states import SETTING
from tests.launch.programs import launch, plain, script, verb


@pytest.fixture
def states() -> Iterator[EightBitStates]:
    patches = EightBitStates()
    try:
        yield patches
    finally:
        patches.undo()


class Attention(nn.Module):
    """A block of a small GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attended.transpose(1, 2).flatten(2)
        return torch.add(x, self.mlp(x))


def gpt() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a small GPT, and its loss for a batch of a sequence that it can learn."""
    model = nn.Sequential(nn.Embedding(96, 64), Attention(64), Attention(64), nn.Linear(64, 96))
    steps = torch.arange(33)

    def loss() -> Tensor:
        starts, factors = torch.randint(96, (8, 1)), torch.randint(1, 4, (8, 1))
        tokens = (starts + factors * steps + (torch.rand(8, 33) < 0.05) * 7) % 96
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


class Residual(nn.Module):
    """A block of a small ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.convs(x))


def resnet() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a small ResNet, and its loss for noisy pictures of ten classes."""
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), Residual(24), Residual(24), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pictures = torch.randn(10, 3, 8, 8)

    def loss() -> Tensor:
        labels = torch.randint(10, (16,))
        images = pictures[labels] + 2 * torch.randn(16, 3, 8, 8)
        return F.cross_entropy(model(images), labels)

    return model, loss


def trained(
    make: Callable[[], tuple[nn.Module, Callable[[], Tensor]]], num_steps: int = 200
) -> tuple[float, Any]:
    """Return the mean loss of the last steps, and the optimizer."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-40:]) / 40, optimizer


@pytest.mark.parametrize("make", [gpt, resnet])
def test_losses_are_near_those_of_full_states(make: Any) -> None:
    expected, _ = trained(make)
    patches = EightBitStates()
    try:
        loss, optimizer = trained(make)
        assert "states of AdamW in 8 bits" in patches.describe()
        assert any(isinstance(each["exp_avg"], EightBitTensor) for each in optimizer.state.values())
    finally:
        patches.undo()
    assert loss == pytest.approx(expected, rel=0.03)


def stepped(optimizer: Any, num_steps: int = 3, seed: int = 0) -> None:
    """Take steps with gradients from a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                grad = torch.randn(param.shape, generator=generator)
                param.grad = torch.empty_like(param).copy_(grad)
        optimizer.step()


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    generator = torch.Generator().manual_seed(7)
    return nn.Parameter(torch.randn(shape or (80, 90), generator=generator).to(dtype))


def are_near(param: Tensor, expected: Tensor, tolerance: float = 2e-3) -> bool:
    return bool((param.float() - expected.float()).abs().max() <= tolerance)


def both(make: Callable[[], list[nn.Parameter]], use: Callable[[Any], Any]) -> None:
    """Use parameters with full states and with 8 bits, and compare what becomes of them."""
    expected, params = make(), make()
    use(expected)
    patches = EightBitStates()
    try:
        use(params)
        assert "in 8 bits" in patches.describe()
    finally:
        patches.undo()
    assert all(map(are_near, params, expected))


OPTIONS: dict[str, dict[str, Any]] = {
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "neither": {"foreach": False, "fused": False},
    "tensor lr": {"lr": torch.tensor(1e-3)},
    "eps and betas": {"eps": 1e-3, "betas": (0.5, 0.9)},
}


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_have_their_effect(kind: Any, name: str) -> None:
    both(lambda: [parameter(), parameter(9)], lambda params: stepped(kind(params, **OPTIONS[name])))


SHAPES: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: parameter(80, 90).detach().t(),
    "channels last": lambda: parameter(8, 16, 8, 8).detach().to(memory_format=torch.channels_last),
    "with gaps": lambda: parameter(80, 180).detach()[:, ::2],
    "an offset": lambda: parameter(100, 90).detach()[7:],
    "bfloat16": lambda: parameter(80, 90).detach().bfloat16(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_any_memory_of_a_parameter_is_updated(name: str) -> None:
    def use(params: list[Tensor]) -> None:
        stepped(AdamW(params, 1e-3), 5)

    tolerance = 0.04 if name == "bfloat16" else 2e-3  # (torch rounds after each operator)
    expected, param = ([SHAPES[name]().requires_grad_()] for _ in range(2))
    use(expected)
    patches = EightBitStates()
    try:
        use(param)
        assert "(1 parameter)" in patches.describe()
    finally:
        patches.undo()
    assert are_near(param[0], expected[0], tolerance)


def test_states_take_a_quarter_of_the_memory(states: EightBitStates) -> None:
    param = parameter(300, 301)
    optimizer = AdamW([param])
    stepped(optimizer)
    moments = [optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")]
    assert sum(each.nbytes for each in moments) <= 0.27 * 2 * param.nbytes
    stored = [tensor for each in moments for tensor in each.moments]
    assert _bytes_of(stored) <= 0.27 * 2 * param.nbytes
    (group,) = optimizer.param_groups
    assert states.num_bytes(optimizer, group, param) == _bytes_of(stored)
    assert states.num_bytes(optimizer, group, parameter(9)) is None
    assert states.num_bytes(SGD([param]), group, param) is None


def test_a_memory_limit_counts_what_states_are_going_to_take(
    states: EightBitStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [parameter(300, 301), parameter(9)]
    optimizer = AdamW(params)
    full_bytes = 2 * sum(param.nbytes for param in params)
    assert limiter._state_bytes(optimizer, lambda _: True) == full_bytes
    monkeypatch.setitem(NOW.applied, "optimizer_states", states)
    state_bytes = limiter._state_bytes(optimizer, lambda _: True)
    stepped(optimizer)
    moments = [
        optimizer.state[param][name] for param in params for name in ("exp_avg", "exp_avg_sq")
    ]
    assert state_bytes == sum(each.nbytes for each in moments)
    assert state_bytes < 0.27 * full_bytes


@pytest.mark.usefixtures("states")
def test_a_script_reads_and_writes_its_states() -> None:
    param = parameter()
    optimizer = Adam([param])
    stepped(optimizer)
    average = optimizer.state[param]["exp_avg"]
    expected = average.clone()
    assert type(expected) is Tensor
    assert average.shape == param.shape
    assert average.dtype is torch.float32
    assert torch.equal(torch.from_numpy(average.numpy()), expected)
    assert average.tolist() == expected.tolist()
    assert repr(average) == repr(expected)
    assert list(optimizer.state[param]) == ["step", "exp_avg", "exp_avg_sq"]
    average.mul_(0.5)
    average[3] = 0
    average[:, 4].fill_(2.0)
    optimizer.state[param]["exp_avg_sq"] = torch.ones_like(param)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    expected = expected * 0.5
    expected[3] = 0
    expected[:, 4] = 2
    assert isinstance(optimizer.state[param]["exp_avg"], EightBitTensor)
    assert are_near(optimizer.state[param]["exp_avg"], expected * 0.9, 0.02)
    assert are_near(optimizer.state[param]["exp_avg_sq"], torch.ones_like(param), 0.01)


@pytest.mark.usefixtures("states")
def test_a_checkpoint_continues_with_the_same_bits() -> None:
    param = parameter()
    optimizer = AdamW([param])
    stepped(optimizer)
    file = io.BytesIO()
    torch.save([param, optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file)
    assert {type(value) for value in state["state"][0].values()} == {Tensor}
    again = AdamW([weights])
    again.load_state_dict(state)
    copies = copy.deepcopy((param, optimizer)), pickle.loads(pickle.dumps((param, optimizer)))
    for each in (optimizer, again, *(each for _, each in copies)):
        stepped(each, seed=1)
        assert isinstance(each.state[each.param_groups[0]["params"][0]]["exp_avg"], EightBitTensor)
    assert torch.equal(param, weights)
    assert all(torch.equal(param, each) for each, _ in copies)


def test_checkpoints_continue_with_full_states_and_back(states: EightBitStates) -> None:
    param = parameter()
    optimizer = AdamW([param])
    stepped(optimizer)
    saved, weights = optimizer.state_dict(), param.detach().clone()
    stepped(optimizer, seed=1)
    states.undo()
    assert {type(value) for value in optimizer.state[param].values()} == {Tensor}
    full = AdamW([weights.requires_grad_()])
    full.load_state_dict(saved)
    stepped(full, seed=1)
    assert {type(value) for value in full.state[weights].values()} == {Tensor}
    assert are_near(weights, param, 5e-4)
    patches = EightBitStates()
    try:
        again = AdamW([weights])
        again.load_state_dict(full.state_dict())
        stepped(again, seed=2)
        assert isinstance(again.state[weights]["exp_avg"], EightBitTensor)
        assert again.state[weights]["step"] == 9
    finally:
        patches.undo()
    stepped(again, seed=3)  # (after the setting was undone, torch continues)
    assert bool(weights.isfinite().all())


def test_groups_schedules_freezing_and_closures_go_on() -> None:
    def use(params: list[nn.Parameter]) -> None:
        optimizer = AdamW(params[:1], lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        calls: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        for step in range(6):
            if step == 2:
                optimizer.add_param_group({"params": params[1:], "lr": 1e-4})
            params[0].requires_grad_(step != 3)

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = sum((param * param).sum() for param in params if param.requires_grad)
                assert isinstance(loss, Tensor)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
            schedule.step()
        assert calls == ["before", "after"] * 6
        assert [float(optimizer.state[param]["step"]) for param in params] == [5, 4]

    both(lambda: [parameter(), parameter(70, 80)], use)


def test_a_scaler_skips_steps_with_infinities() -> None:
    def use(params: list[nn.Parameter]) -> None:
        for is_fused in (False, True):
            optimizer = AdamW(params, lr=1e-3, fused=is_fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for step in range(4):
                optimizer.zero_grad()
                factor = float("inf") if step == 2 else 1.0
                scaler.scale((params[0].square() * factor).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            assert optimizer.state[params[0]]["step"] == 3

    both(lambda: [parameter()], use)


class Logging(AdamW):
    """A subclass with a step of its own."""

    def step(self, closure: Any = None) -> Any:
        """Take the step of AdamW."""
        return super().step(closure)


class Renamed(AdamW):
    """A subclass that changes nothing."""


REFUSED: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "amsgrad": (lambda p: AdamW(p, amsgrad=True), "amsgrad is set"),
    "a step of its own": (Logging, "states of Logging as torch keeps them: it has a step"),
    "float64": (lambda _: Adam([parameter(dtype=torch.float64)]), "parameters are torch.float64"),
    "another optimizer": (lambda p: SGD(p, 0.1, momentum=0.9), "only Adam and AdamW"),
    "small parameters": (lambda _: Adam([parameter(63, 65)]), "4,096 elements and more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_8_bits_is_as_torch_has_it_and_says_why(
    states: EightBitStates, name: str
) -> None:
    make, reason = REFUSED[name]
    optimizer = make([parameter()])
    stepped(optimizer)
    states.undo()
    expected = make([parameter()])
    stepped(expected)
    for ours, theirs in zip(optimizer.param_groups, expected.param_groups, strict=True):
        assert all(map(torch.equal, ours["params"], theirs["params"]))
    assert reason in states.describe()
    assert "in 8 bits (" not in states.describe()


def test_a_subclass_without_a_step_of_its_own_has_8_bits(states: EightBitStates) -> None:
    stepped(Renamed([parameter()]))
    assert states.describe() == "states of Renamed in 8 bits (1 parameter)"


def test_full_states_patch_nothing_and_undo_restores_all() -> None:
    def functions() -> list[Any]:
        adam = sys.modules[Adam.__module__]
        return [Adam._init_group, vars(adam)["adam"], torch.optim.Optimizer.state_dict]

    before = functions()
    assert SETTING.apply(torch, "full") is None
    assert functions() == before
    patches = EightBitStates()
    assert not any(now is then for now, then in zip(functions(), before, strict=True))
    patches.undo()
    assert functions() == before


@pytest.mark.usefixtures("states")
def test_sparse_gradients_raise_as_without() -> None:
    table = nn.Embedding(100, 64, sparse=True)
    table(torch.arange(3)).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        Adam(table.parameters()).step()


@pytest.mark.usefixtures("states")
def test_options_that_are_set_later_give_the_states_back() -> None:
    param = parameter()
    optimizer = Adam([param])
    stepped(optimizer)
    optimizer.param_groups[0]["differentiable"] = True
    optimizer.defaults["differentiable"] = False
    stepped(optimizer)
    assert type(optimizer.state[param]["exp_avg"]) is Tensor


def test_without_a_compiler_torch_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for compiler in ("", "no-such-compiler"):
        monkeypatch.setenv("CC", compiler)
        patches = EightBitStates()
        try:
            param = parameter(700, 900)
            stepped(AdamW([param]))
        finally:
            patches.undo()
        results.append(param)
    assert "updated by torch's operators (there is no C compiler" in patches.describe()
    compiled, composed = results
    assert are_near(compiled, composed, 1e-4)  # (a rounding may choose the next code)


@pytest.mark.usefixtures("states")
def test_a_parameter_that_was_saved_for_backward_has_a_new_version() -> None:
    param = parameter()
    optimizer = Adam([param])
    stepped(optimizer, 1)
    loss = param.square().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


SCRIPT = """
import json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
losses = []
for step in range(10):
    inputs = torch.randn(32, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
kinds = sorted({type(v["exp_avg"]).__name__ for v in optimizer.state.values()})
print(json.dumps([losses, kinds]))
"""


def test_a_launch_has_8_bits_only_by_the_users_word(tmp_path: Path) -> None:
    path = str(script(tmp_path, SCRIPT))
    runs = {
        "python": plain(tmp_path, path, OMP_NUM_THREADS="1"),
        "full": launch(tmp_path, path, OMP_NUM_THREADS="1"),
        "8bit": launch(tmp_path, "--optimizer-states", "8bit", path, OMP_NUM_THREADS="1"),
    }
    results = {name: json.loads(done.stdout) for name, done in runs.items()}
    assert results["python"][1] == results["full"][1] == ["Tensor"]
    assert results["8bit"][1] == ["EightBitTensor", "Tensor"]
    assert results["full"][0] == pytest.approx(results["python"][0], rel=1e-5)
    assert results["8bit"][0] == pytest.approx(results["python"][0], rel=0.02)
    assert "states of AdamW in 8 bits (1 parameter)" in runs["8bit"].stderr
    assert "8 bits" not in runs["full"].stderr
    said = verb(tmp_path, "plan", "--why-not", "8bit").stdout
    assert "it changes results; --optimizer-states 8bit allows it" in said


COMPILED = """
import json, torch
results = []
for is_compiled in (False, True, False):
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(80, 90))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.randn_like(param)
    step = torch.compile(optimizer.step, backend="eager") if is_compiled else optimizer.step
    for _ in range(4):
        step()
    optimizer.step()
    state = optimizer.state[param]
    results.append([param.sum().item(), state["step"].item(), type(state["exp_avg"]).__name__])
print(json.dumps(results))
"""


def test_a_compiled_step_updates_as_an_eager_one(tmp_path: Path) -> None:
    path = str(script(tmp_path, COMPILED))
    done = launch(tmp_path, "--optimizer-states", "8bit", path)
    assert done.returncode == 0, done.stderr
    (expected, *count), *rest = json.loads(done.stdout)
    assert count == [5, "EightBitTensor"]
    for total, *numbers in rest:
        assert total == pytest.approx(expected, abs=0.05)
        assert numbers == count
