"""Captured graphs: what is replayed is what the same operators compute without a graph."""

from __future__ import annotations

import copy
import gc
import os
import random
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from cputrain.opencl import Graph
from cputrain.opencl.device import devices

pytestmark = pytest.mark.usefixtures("forbidden")


@pytest.fixture(autouse=True)
def _no_graph_of_another_test():
    for _ in range(2):  # (exceptions may hold one)
        gc.collect()
    assert not devices()[0].pinned


def equal(tensor, expected):
    torch.testing.assert_close(tensor.cpu(), expected.cpu(), rtol=0, atol=0)


class TestCapture:
    def test_nothing_runs_until_replay(self):
        x = torch.ones(4, device="ocl")
        graph = Graph()
        with graph:
            x += 1
        equal(x, torch.ones(4))
        graph.replay()
        graph.replay()
        equal(x, torch.full((4,), 3.0))

    def test_results_are_of_the_inputs_at_replay(self):
        x = torch.zeros(3, 5, device="ocl")
        with Graph() as graph:
            y = torch.softmax(x @ x.T, 1)
        for seed in range(3):
            given = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))
            x.copy_(given)
            graph.replay()
            equal(y, torch.softmax(given.to("ocl") @ given.to("ocl").T, 1))

    def test_memory_of_the_graph_is_not_given_to_other_tensors(self):
        x = torch.full((1000,), 2.0, device="ocl")
        with Graph() as graph:
            y = ((x + 1) * 3).sum()
        del x
        others = [torch.zeros(1000, device="ocl") for _ in range(50)]
        graph.replay()
        assert y.item() == 9000
        assert all(each.sum().item() == 0 for each in others)

    def test_memory_is_returned_by_reset(self):
        device = devices()[0]
        gc.collect()
        before = device.stats().allocated
        x = torch.ones(100_000, device="ocl")
        with Graph() as graph:
            y = (x + 1).exp().sum()
        del x, y
        assert device.stats().allocated > before
        graph.reset()
        assert device.stats().allocated == before
        assert not device.pinned

    def test_memory_is_returned_by_a_graph_that_is_gone(self):
        x = torch.ones(8, device="ocl")
        graph = Graph()
        with graph:
            x += 1
        del graph
        gc.collect()
        assert not devices()[0].pinned

    def test_a_block_is_used_again_within_the_graph(self):
        x = torch.ones(1000, device="ocl")
        with Graph() as graph:
            y = x
            for _ in range(50):
                y = y * 1.01
        assert len(devices()[0].pinned) <= 4
        graph.replay()
        expected = torch.ones(1000, device="ocl")
        for _ in range(50):
            expected = expected * 1.01
        equal(y, expected)

    def test_operators_of_other_threads_run(self):
        x, y = torch.zeros(4, device="ocl"), torch.zeros(4, device="ocl")
        graph = Graph()
        with graph:
            x += 1
            thread = threading.Thread(target=lambda: y.add_(5))
            thread.start()
            thread.join()
        equal(y, torch.full((4,), 5.0))
        graph.replay()
        equal(x, torch.ones(4))
        equal(y, torch.full((4,), 5.0))

    def test_a_captured_input_may_be_written_by_a_fallback(self, monkeypatch):
        monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
        x = torch.arange(1.0, 7).to("ocl")
        with Graph() as graph:
            y = x * 2
        torch.igamma(x, x, out=x)
        graph.replay()
        equal(y, x.cpu() * 2)


class TestRandomNumbers:
    def test_they_go_on_as_without_a_graph(self):
        x = torch.ones(1000, device="ocl")
        torch.manual_seed(3)
        expected = [(functional.dropout(x), torch.rand(7, device="ocl")) for _ in range(4)]
        torch.manual_seed(3)
        with Graph() as graph:
            y, z = functional.dropout(x), torch.rand(7, device="ocl")
        for dropped, drawn in expected[:3]:
            graph.replay()
            equal(y, dropped)
            equal(z, drawn)
        equal(functional.dropout(x), expected[3][0])

    def test_a_seed_applies_to_replays(self):
        with Graph() as graph:
            x = torch.randn(10, device="ocl")
        torch.manual_seed(8)
        graph.replay()
        first = x.cpu()
        graph.replay()
        assert not torch.equal(x.cpu(), first)
        torch.manual_seed(8)
        graph.replay()
        equal(x, first)


class TestRefusals:
    @pytest.mark.parametrize(
        "read", [torch.Tensor.item, torch.Tensor.cpu, lambda x: x.tolist(), torch.nonzero, bool]
    )
    def test_values_cannot_be_read(self, read, monkeypatch):
        monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
        x = torch.ones(1, device="ocl")
        graph = Graph()
        with pytest.raises(RuntimeError, match="while a graph is captured"), graph:
            read(x + 1)
        assert not devices()[0].pinned
        equal(x + 1, torch.full((1,), 2.0))
        with graph:
            x += 1
        graph.replay()
        equal(x, torch.full((1,), 2.0))

    def test_an_operator_without_a_kernel_is_named(self, monkeypatch):
        monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
        x = torch.ones(3, device="ocl")
        with pytest.raises(RuntimeError, match="igamma"), Graph():
            torch.igamma(x, x)

    def test_copies_from_the_cpu_are_refused(self):
        x = torch.zeros(3, device="ocl")
        with pytest.raises(RuntimeError, match="copy from the CPU"), Graph():
            x.copy_(torch.ones(3))

    def test_an_optimizer_with_its_step_on_the_cpu(self):
        weight = nn.Parameter(torch.ones(3, device="ocl"))
        weight.grad = torch.ones(3, device="ocl")
        optimizer = torch.optim.Adam([weight])
        optimizer.step()
        with pytest.raises(RuntimeError, match="capturable=True"), Graph():
            optimizer.step()

    def test_begin_twice(self):
        graph, other = Graph(), Graph()
        with graph, pytest.raises(RuntimeError, match="capture_end"):
            other.capture_begin()
        with pytest.raises(RuntimeError, match="reset"):
            graph.capture_begin()
        graph.reset()
        graph.capture_begin()
        graph.capture_end()

    def test_end_and_replay_before_begin(self):
        with pytest.raises(RuntimeError, match="capture_begin"):
            Graph().capture_end()
        with pytest.raises(RuntimeError, match="capture_begin"):
            Graph().replay()

    def test_an_exception_ends_the_capture(self):
        x = torch.zeros(2, device="ocl")
        graph = Graph()
        with pytest.raises(ZeroDivisionError), graph:
            x += 1 // 0
        x += 1
        equal(x, torch.ones(2))
        with pytest.raises(RuntimeError, match="capture_begin"):
            graph.replay()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_replay():
    x = torch.zeros(4, device="ocl")
    with Graph() as graph:
        x += 1
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            graph.replay()
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as file:
        assert "cannot replay a graph in a forked subprocess" in file.read()


def test_launches_may_be_enqueued_by_pyopencl(monkeypatch):
    x = torch.zeros(2, 3, device="ocl")
    with Graph() as graph:
        x += x @ torch.ones(3, 3, device="ocl") + 1
    monkeypatch.setattr("cputrain.opencl.graphs.launch_list._driver_function", lambda: None)
    graph.replay()
    graph.replay()
    equal(x, torch.full((2, 3), 5.0))


@pytest.mark.parametrize(("status", "kind"), [(-4, torch.OutOfMemoryError), (-52, RuntimeError)])
def test_an_error_of_the_driver_is_torchs(monkeypatch, status, kind):
    x = torch.zeros(4, device="ocl")
    with Graph() as graph:
        x += 1
    function = "cputrain.opencl.graphs.launch_list._driver_function"
    monkeypatch.setattr(function, lambda: lambda *_: status)
    with pytest.raises(kind, match=r"an OpenCL device .* \(.*[A-Z]{3}"):
        graph.replay()


def step_of(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


MODELS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 5)
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    ),
    "attention": lambda: nn.Sequential(
        nn.Flatten(2), nn.Linear(64, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), nn.Flatten(),
        nn.Linear(48, 5),
    ),
}  # fmt: skip

OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda weights: torch.optim.AdamW(weights, 1e-2, capturable=True),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("model_name", MODELS)
def test_training_is_as_without_a_graph(model_name, optimizer_name):
    model = MODELS[model_name]().to("ocl")
    twin = copy.deepcopy(model)
    batches = [
        (torch.randn(4, 3, 8, 8).to("ocl"), torch.randint(5, (4,)).to("ocl")) for _ in range(8)
    ]
    expected = train(twin, OPTIMIZERS[optimizer_name](twin.parameters()), batches)
    losses = train(model, OPTIMIZERS[optimizer_name](model.parameters()), batches, graph=Graph())
    assert losses == expected
    for value, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        equal(value, other)


def train(model, optimizer, batches, graph=None):
    torch.manual_seed(1)
    losses = []
    static = [tensor.clone() for tensor in batches[0]]
    loss = None
    for number, batch in enumerate(batches):
        if graph is None or number < 3:
            losses.append(step_of(model, optimizer, *batch).item())
            continue
        if loss is None:
            with graph:
                loss = step_of(model, optimizer, *static)
        for tensor, value in zip(static, batch, strict=True):
            tensor.copy_(value)
        graph.replay()
        losses.append(loss.item())
    return losses


def test_a_replayed_call_is_captured_as_it_is_written():
    model = MODELS["mlp"]().to("ocl")
    x = torch.randn(4, 3, 8, 8).to("ocl")
    for _ in range(7):
        model(x).sum().backward()
    with Graph() as graph:
        y = model(x)
    torch.manual_seed(2)
    graph.replay()
    torch.manual_seed(2)
    equal(y, model(x).detach())


OPERATORS = (
    lambda x, _: x + 1, lambda x, y: x * y, lambda x, _: torch.relu(x),
    lambda x, _: x.T.contiguous().T, lambda x, y: x @ y.T @ y,
    lambda x, _: functional.dropout(x, 0.4), lambda x, _: x - x.mean(0),
    lambda x, y: torch.cat([x, y])[: len(x)], lambda x, _: torch.softmax(x, 1),
    lambda x, _: x[:, :3].repeat(1, 2), lambda x, y: torch.where(x > y, x, y),
    lambda x, _: x.clamp_(-2, 2), lambda x, y: x.add_(y, alpha=0.5),
    lambda x, _: torch.randn_like(x) + x,
)  # fmt: skip


def program(seed):
    draw = random.Random(seed)
    chosen = [draw.choice(OPERATORS) for _ in range(draw.randint(1, 12))]
    is_accumulated = draw.random() < 0.5

    def run(x, total):
        y = x * 1.5
        for operator in chosen:
            y = operator(y, x)
        if is_accumulated:
            total += y.sum()
        return y

    return run


@pytest.mark.parametrize("part", range(4))
def test_generated_programs(part, pytestconfig):
    """Replays have the bits of the same program without a graph."""
    number = 5 if pytestconfig.option.markexpr == "not long" else 250
    for seed in range(part * number, (part + 1) * number):
        run = program(seed)
        inputs = [torch.randn(4, 6).to("ocl") for _ in range(3)]
        torch.manual_seed(seed)
        total = torch.zeros((), device="ocl")
        expected = [(run(x, total).cpu(), total.cpu()) for x in inputs]
        torch.manual_seed(seed)
        static, total = inputs[0].clone(), torch.zeros((), device="ocl")
        with Graph() as graph:
            y = run(static, total)
        for x, (result, sum_) in zip(inputs, expected, strict=True):
            static.copy_(x)
            graph.replay()
            torch.testing.assert_close(y.cpu(), result, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(total.cpu(), sum_, rtol=0, atol=0, equal_nan=True)


class TestConstants:
    """Values that depend on nothing but the block's own code may be read within it."""

    def test_they_are_read_while_a_graph_is_captured(self):
        x = torch.ones(3, device="ocl")
        with Graph() as graph:
            positions = torch.arange(3, device="ocl")
            positions += 2
            total = (positions * 2).sum().item()
            y = x * total
        assert total == 18
        graph.replay()
        equal(y, torch.full((3,), 18.0))

    def test_what_was_read_beside_others_is_one_still(self):
        table = torch.randn(5, 2).to("ocl")
        with Graph() as graph:
            positions = torch.arange(3, device="ocl")
            y = functional.embedding(positions, table)
            assert bool((positions >= 0).all())
        graph.replay()
        equal(y, table.cpu()[:3])

    @pytest.mark.parametrize(
        "values",
        [
            lambda x: x.sum(), lambda x: (torch.zeros(3, device="ocl") + x).sum(),
            lambda _: torch.rand(1, device="ocl"),
            lambda x: torch.zeros(3, device="ocl").copy_(x)[0],
            lambda x: torch.arange(3, device="ocl").mul_(2).add_(x.long()).sum(),
        ],
    )  # fmt: skip
    def test_others_are_not(self, values):
        x = torch.ones(3, device="ocl")
        with pytest.raises(RuntimeError, match="while a graph is captured"), Graph():
            values(x).item()
