"""A batch divided among devices gives what one gives, wherever the model is."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from cputrain import Split
from cputrain.errors import UsageError
from cputrain.split import devices
from cputrain.split.execution import transfer
from tests.split import other_device
from tests.split.models import MODELS
from tests.split.test_exact import are_the_same, farthest


@pytest.fixture(autouse=True)
def _there():
    other_device.begin()
    other_device.Limits.elements = float("inf")


KINDS = sorted(set(MODELS) - {"words"})
"""Torch's LSTM has no kernel there."""


def both(kind):
    make, batch = MODELS[kind]
    model = make()
    return model, copy.deepcopy(model), batch


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("devices", "replicas", "shares"),
    [
        (("other", "cpu"), 1, (1, 2)),
        (("cpu", "other"), 2, (3, 1)),
        ("other", "auto", "auto"),
    ],
)
def test_gradients_are_those_of_the_whole_batch(kind, devices, replicas, shares):
    model, twin, batch = both(kind)
    split = Split(twin, devices, replicas, shares)
    for _ in range(3):
        assert farthest(model, split, batch(10)) <= 1e-12
    assert split.why_not == ""
    assert all(parameter.device.type == "cpu" for parameter in split.parameters())


class Moved(nn.Module):
    """A model on the other device, for callers that are on the CPU."""

    def __init__(self, split):
        super().__init__()
        self.split = split

    def forward(self, batch):
        out = self.split(batch.to("other"))
        return tuple(one.cpu() for one in out) if isinstance(out, tuple) else out.cpu()

    def parameters(self, recurse=True):
        for parameter in self.split.parameters(recurse):
            copied = parameter.detach().cpu()
            copied.grad = None if parameter.grad is None else parameter.grad.cpu()
            yield copied

    def buffers(self, recurse=True):
        return (buffer.cpu() for buffer in self.split.buffers(recurse))


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("kind", ["mlp", "resnet", "sequences first", "unet"])
@pytest.mark.parametrize(("replicas", "shares"), [(1, (1, 2)), (2, (2, 1))])
def test_the_model_may_be_on_another_device(kind, replicas, shares):
    """What has no random numbers: those of this device are the CPU's, which it does not tell."""
    model, twin, batch = both(kind)
    model.eval() if kind == "sequences first" else None
    twin.train(model.training)
    split = Split(other_device.moved(twin), ("other", "cpu"), replicas, shares)
    for _ in range(2):
        assert farthest(model, Moved(split), batch(10)) <= 1e-12
    assert split.why_not == ""
    assert split.calls_divided == 2
    assert all(parameter.grad.device.type == "other" for parameter in split.parameters())


def test_nobody_but_the_caller_waits_for_the_models_device():
    """What a replica on the CPU asked of it would wait for all that it has to do."""
    _, twin, batch = both("unet")
    split = Split(other_device.moved(twin), ("other", "cpu"), replicas=2, shares=(1, 2))
    x = batch(12)
    split(x.to("other")).sum().backward()  # the first call is also tried with a few samples
    other_device.threads.clear()
    split(x.to("other")).sum().backward()
    assert split.calls_divided == 2
    assert not [name for name in other_device.threads if "cputrain" in name]


SEEN = []


def note_devices(*tensors):
    """Keep where tensors are; a list of the model itself would leave it undivided."""
    SEEN.append(tuple(one.device.type for one in tensors))


class Elsewhere(nn.Module):
    """Works with tensors that are where they are for a reason."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = torch.ones(4)

    def forward(self, batch, lengths):
        note_devices(batch, lengths, self.table)
        return self.layer(batch) * lengths.sum().to(batch.device) + self.table


def test_only_what_is_where_the_model_is_goes_with_the_parts():
    model = Elsewhere()
    split = Split(other_device.moved(copy.deepcopy(model)), ("other", "cpu"), shares=(1, 1))
    split.table = split.table.to("other")
    x, lengths = torch.randn(8, 4), torch.tensor(3.0)
    SEEN.clear()
    for factor in (1, 2):
        for one in (model, split):
            one.table.mul_(factor)
        torch.testing.assert_close(split(x.to("other"), lengths).cpu(), model(x, lengths))
    assert split.calls_divided == 2
    assert set(SEEN) == {("other", "cpu", "other"), ("cpu", "cpu", "cpu")}


class Adds(nn.Module):
    """A layer, and something made of its batch."""

    def __init__(self, made_of):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.made_of = made_of

    def forward(self, batch):
        return self.layer(batch) + self.made_of(batch)


@pytest.mark.usefixtures("exactly")
def test_buffers_that_change_leave_the_others_alone():
    """Two forwards before a backward: the first one's graph has what does not change."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("scale", torch.randn(4))

        def forward(self, batch):
            return self.norm(batch) * self.scale

    model = Scaled()
    twin = copy.deepcopy(model)
    split = Split(twin, ("other", "cpu"), shares=(1, 1))
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    for one in (model, split):
        (one(x) + one(y)).square().sum().backward()
    torch.testing.assert_close(model.norm.weight.grad, twin.norm.weight.grad)
    split.eval()
    split(x).sum().backward()
    split.train()
    split(y).sum().backward()


def test_a_tensor_that_is_exchanged_in_a_container_is_seen():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.held = {"h": [torch.ones(4)]}

        def forward(self, batch):
            return self.layer(batch) + self.held["h"][0]

    model = Holds()
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    x = torch.randn(8, 4)
    split(x)
    model.held["h"][0] = torch.full((4,), 7.0)
    torch.testing.assert_close(split(x), model(x))


def test_a_draw_is_made_where_the_whole_batch_makes_it():
    def noise(batch):
        return torch.rand(len(batch), 1).to(batch.device) + torch.rand_like(batch)

    split = Split(other_device.moved(Adds(noise)), ("other", "cpu"), shares=(1, 1))
    split(torch.randn(8, 4).to("other"))
    (known,) = split._split_dispatcher._shardings.values()
    assert [draw.device.type for draw in known.spec.draws] == ["cpu", "other"]


@pytest.mark.usefixtures("exactly")
def test_the_default_device_is_each_parts_own():
    split = Split(Adds(lambda _: torch.ones(4)), ("other", "cpu"), shares=(1, 1))
    torch.set_default_device("cpu")
    try:
        x = torch.randn(8, 4)
        torch.testing.assert_close(split(x), split._split_model(x))
    finally:
        torch.set_default_device(None)
    assert split.calls_divided == 1


def test_a_model_may_be_moved():
    model = nn.Linear(4, 4)
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    x = torch.randn(8, 4)
    expected = split(x)
    other_device.moved(split)
    torch.testing.assert_close(split(x.to("other")).cpu(), expected)
    assert split.calls_divided == 2


def test_one_that_was_kept_is_read_where_the_device_is_missing(tmp_path):
    kept = tmp_path / "split.pt"
    torch.save(Split(nn.Linear(4, 2), ("other", "cpu"), 3), kept)
    read = (
        "import sys, torch\n"
        "split = torch.load(sys.argv[1], weights_only=False)\n"
        "print(type(split).__name__, split(torch.ones(8, 4)).shape)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", read, str(kept)], capture_output=True, text=True, check=True
    )
    assert found.stdout == "Split torch.Size([8, 2])\n"
    assert "on the CPU alone" in found.stderr


def test_train_and_eval_have_one_copy_of_the_parameters():
    split = Split(nn.Linear(4, 2), ("other", "cpu"), shares=(1, 1))
    x = torch.randn(8, 4)
    split(x).sum().backward()
    split.eval()
    split(x)
    views = list(split._split_dispatcher._replicas.values())
    assert len(views) == 2
    assert len({id(view.flat_params) for each in views for view in each if view.flat_params}) == 1


def test_losses_are_those_of_the_whole_batch():
    """Over a hundred steps of float32, with shares that are fitted meanwhile."""
    splits = []

    def split(model):
        splits.append(Split(model, ("other", "cpu")))
        return splits[-1]

    assert are_the_same("unet", split, 16)
    assert all(one.why_not == "" for one in splits)


def test_what_is_found_is_told(capsys):
    """The stand-in is slower than the CPU that it is on."""
    split = Split(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)), ("other", "cpu"))
    for _ in range(60):
        split(torch.randn(64, 64)).sum().backward()
        if not split._split_dispatcher.is_measuring:
            break
    told = capsys.readouterr().err.splitlines()
    assert all(line.startswith("cputrain.Split: ") for line in told)
    assert "predicted" in told[0]
    assert "faster" in told[-1] or "as fast" in told[-1]


def test_less_is_given_to_a_device_without_memory(capsys):
    """Once, and exactly: random numbers and buffers are as if nothing had been."""
    torch.set_default_dtype(torch.float64)
    model, twin, batch = both("resnet")
    split = Split(twin, ("other", "cpu"), shares=(1, 1))
    assert farthest(model, split, batch(10)) <= 1e-12
    other_device.Limits.elements = 20 * 8 * 6 * 6 - 1  # what the largest of layers has of 20
    assert farthest(model, split, batch(40)) <= 1e-12
    assert "other:0 has no memory for 20 samples: it has 10 at most" in capsys.readouterr().err
    other_device.Limits.elements = 100
    with pytest.raises(torch.OutOfMemoryError, match="other has no memory"):
        split(batch(40))
    other_device.Limits.elements = float("inf")
    assert farthest(model, split, batch(40)) <= 1e-12


class Hungry(torch.autograd.Function):
    """Has no memory for a gradient of more than so many samples there.

    (The device's own operations cannot tell: an error in Python is the end of torch's backward.)
    """

    most = 1000

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        if gradient.device.type == "other" and len(gradient) > Hungry.most:
            raise torch.OutOfMemoryError("other has no memory for a gradient")
        return gradient


class Hungered(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, batch):
        return Hungry.apply(self.inner(batch))


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("there", [False, True])
def test_less_is_given_in_a_backward_as_well(capsys, monkeypatch, there):
    make, batch = MODELS["resnet"]
    model = Hungered(make())
    model.inner[7].p = 0.0 if there else 0.2  # (torch's dropout does not run there)
    twin = copy.deepcopy(model)
    split = Split(other_device.moved(twin) if there else twin, ("other", "cpu"), shares=(1, 1))
    x = batch(40)
    found = []
    for one in (model, split):
        torch.manual_seed(1)
        loss = one(x.to("other") if one is split and there else x).square().mean()
        monkeypatch.setattr(Hungry, "most", 15)
        noise = torch.rand(1)  # what is drawn meanwhile is not drawn once more
        loss.backward()
        found.append((loss.item(), noise.item(), torch.rand(1).item()))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert "it has 10 at most" in capsys.readouterr().err
    for a, b in zip(model.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad.cpu(), rtol=1e-11, atol=1e-11)
    for a, b in zip(model.buffers(), split.buffers(), strict=True):
        torch.testing.assert_close(a, b.cpu())


def test_weights_that_changed_are_not_computed_with_again(monkeypatch):
    model = Hungered(nn.Linear(4, 4))
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    loss = split(torch.randn(8, 4)).square().mean()
    monkeypatch.setattr(Hungry, "most", 1)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(torch.OutOfMemoryError, match="other has no memory"):
        loss.backward()


def test_an_error_on_a_device_is_raised_and_leaves_the_others():
    fails = []

    def nothing(batch):
        if batch.device.type == "other" and fails:
            raise ValueError("of this device alone")
        return 0

    split = Split(Adds(nothing), ("other", "cpu"), shares=(1, 1))
    split(torch.ones(8, 4)).sum().backward()
    fails.append(True)
    with pytest.raises(ValueError, match="of this device alone"):
        split(torch.ones(8, 4))
    fails.clear()
    split(torch.ones(8, 4)).sum().backward()
    assert split.calls_divided == 2


def test_a_buffer_elsewhere_is_told():
    model = nn.Linear(4, 4)
    model.register_buffer("scale", torch.ones(4).to("other"))
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    with pytest.warns(UserWarning, match="has a buffer on other:0"):
        split(torch.ones(8, 4))


def test_what_does_not_work_there_is_left_alone():
    split = Split(Adds(lambda _: torch.ones(4)), ("other", "cpu"), shares=(1, 1))
    with pytest.warns(UserWarning, match="same device"):
        split(torch.ones(8, 4))
    assert split.calls_divided == 0


def test_parameters_changed_behind_torchs_back_are_seen():
    """As by `parameter.data.clamp_`, of which no version tells."""
    model = nn.Linear(4, 2)
    split = Split(model, ("other", "cpu"), shares=(3, 1))
    x = torch.randn(8, 4)
    split(x).sum().backward()
    model.weight.data.mul_(2)
    torch.testing.assert_close(split(x), model(x))


@pytest.mark.usefixtures("exactly")
def test_several_calls_before_a_backward():
    model, twin, batch = both("mlp")
    split = Split(twin, ("other", "cpu"), shares=(1, 1))
    one, other = batch(8), batch(6)
    for each in (model, split):
        (each(one).sum() + each(other).square().sum()).backward()
        each(one).sum().backward()  # and once more, before an update
    for a, b in zip(model.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_weights_that_change_before_a_backward_are_told():
    """As torch tells of it where nothing is divided."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    out = split(torch.randn(8, 4))
    with torch.no_grad():
        model[1].weight.add_(1)
    split(torch.randn(8, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.usefixtures("exactly")
def test_frozen_and_channels_last_and_accumulated():
    make, batch = MODELS["resnet"]
    model = make().to(memory_format=torch.channels_last)
    next(model.parameters()).requires_grad_(False)
    twin = copy.deepcopy(model)
    split = Split(twin, ("other", "cpu"), shares=(1, 2))
    for each in (model, split):
        optimizer = torch.optim.AdamW([p for p in each.parameters() if p.requires_grad], lr=0.01)
        torch.manual_seed(5)
        for step in range(6):
            each(batch(9)).square().mean().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        assert a.stride() == b.stride()


def test_a_model_that_is_evaluated_first_is_trained_afterwards():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    split = Split(model, ("other", "cpu"), shares=(1, 1))
    x = torch.randn(8, 4)
    with torch.inference_mode():
        split.eval()
        torch.testing.assert_close(split(x), model(x))
    split(x).sum().backward()
    split.train()
    split(x).sum().backward()
    assert split.calls_divided == 3


def replica_threads():
    return [one for one in threading.enumerate() if one.name.startswith("cputrain-replica-")]


def wait_for_no_replica_threads():
    for _ in range(200):
        gc.collect()
        if not replica_threads():
            return
        threading.Event().wait(0.05)
    raise AssertionError(replica_threads())


def test_threads_end_with_the_split():
    wait_for_no_replica_threads()  # those of tests before
    split = Split(nn.Linear(4, 2), ("other", "cpu"), replicas=4, shares=(1, 1))
    split(torch.randn(8, 4)).sum().backward()
    assert len(replica_threads()) == 5
    del split
    wait_for_no_replica_threads()


@pytest.mark.parametrize(
    ("devices", "shares", "says"),
    [
        (("nowhere", "cpu"), "auto", "'nowhere'"),
        (("cpu", "cpu"), "auto", "twice"),
        (("meta", "cpu"), "auto", "no values"),
        ((), "auto", "name one"),
        ((3.5,), "auto", "3.5"),
        (("other", "cpu"), (1, 2, 3), "for 2 devices"),
        (("other", "cpu"), (1, -2), "for 2 devices"),
    ],
)
def test_what_is_not_a_device_is_told(devices, shares, says):
    with pytest.raises(UsageError, match=says):
        Split(nn.Linear(2, 2), devices, shares=shares)


class Streams:
    """What torch has for a kind of device with several orders of work; it writes down who waits."""

    def __init__(self):
        self.seen = []
        self.main = self.now = self.Stream("main")

    def Stream(self, _device):  # noqa: N802  (torch's name)
        return Stream("main" if _device == "main" else "road", self.seen)

    def current_stream(self, _device):
        return self.now

    @contextmanager
    def stream(self, one):
        before, self.now = self.now, one
        yield
        self.now = before


class Stream:
    def __init__(self, name, seen):
        self.name, self._seen = name, seen

    def wait_stream(self, other):
        self._seen.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        return self

    def synchronize(self):
        self._seen.append(f"the part waits for {self.name}")


def test_copies_go_by_a_road_where_the_device_has_streams(monkeypatch):
    """Each waits for what it needs, and each step's result is that of the whole batch."""
    streams, own = Streams(), devices.module_of

    def module_of(device):
        return streams if device.type == "other" else own(device)

    monkeypatch.setattr(devices, "module_of", module_of)
    monkeypatch.setattr(transfer, "module_of", module_of)
    monkeypatch.setattr(devices, "_streams", {})
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, one: streams.seen.append(f"used by {one.name}")
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("other")
    twin = copy.deepcopy(model)
    split = Split(twin, ("other", "cpu"), shares=(3, 1))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    split(torch.randn(16, 4).to("other"))  # it is compared with the whole
    for _ in range(3):
        x = torch.randn(16, 4).to("other")
        streams.seen.clear()
        for one, optimizer in zip((model, split), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
        # there and back, in the forward and in the backward
        once = [
            "road waits for main", "used by road", "the part waits for road", "used by main",
            "main waits for road",
        ]  # fmt: skip
        assert streams.seen == once * 2
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.cpu(), b.cpu())
