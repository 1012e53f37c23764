"""A batch divided among a GPU and the CPU gives what one of them gives, wherever the model is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cputrain import Split
from cputrain.split.devices import SideStream
from cputrain.split.execution.transfer import TransferStream
from tests.split.models import MODELS
from tests.split.test_exact import far, first_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # autograd's own thread says so wherever its first operator is a matmul
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

HOMES = ("cpu", "cuda")


@pytest.fixture(autouse=True)
def _of_full_precision():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def drawn_from(home):
    """The generator's state: what is drawn in a divided forward is what would have been."""
    return torch.cuda.get_rng_state() if home == "cuda" else torch.get_rng_state()


def farthest(model, split, x, home):
    """The largest relative difference of a step: of the output, a gradient, a buffer."""
    outputs, states = [], []
    for one in (model, split):
        one.zero_grad()
        torch.manual_seed(1)
        outputs.append(one(x))
        states.append(drawn_from(home))
    assert torch.equal(*states)
    weights = torch.randn_like(first_of(outputs[0]))
    for output in outputs:
        (first_of(output) * weights).sum().backward()
    both = list(zip(model.parameters(), split.parameters(), strict=True))
    largest = max(float(one.grad.norm()) for one, _ in both)
    found = [far(first_of(outputs[0]).detach(), first_of(outputs[1]).detach())]
    found += [far(one.grad, other.grad, least=1e-3 * largest) for one, other in both]
    found += [
        far(one.double(), other.double())
        for one, other in zip(model.buffers(), split.buffers(), strict=True)
    ]
    return max(found)


def twins(make, home):
    """Two of a model, without dropout in attention. (A copy of an LSTM is not compact.)"""
    both = [make().to(home) for _ in range(2)]
    both[1].load_state_dict(both[0].state_dict())
    for module in (module for model in both for module in model.modules()):
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return both


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(("replicas", "shares"), [(1, (1, 2)), (2, (3, 1))])
def test_gradients_are_those_of_the_whole_batch(kind, home, replicas, shares):
    make, batch = MODELS[kind]
    model, twin = twins(make, home)
    split = Split(twin, ("cuda", "cpu"), replicas, shares)
    for _ in range(3):
        assert farthest(model, split, batch(10).to(home), home) <= 1e-11
    assert split.why_not == ""
    assert split.calls_divided == 3


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("kind", ["mlp", "transformer", "words"])
def test_losses_are_those_of_one_device(kind, home):
    """A hundred steps of float32, with shares that are fitted meanwhile."""
    make, batch = MODELS[kind]
    torch.manual_seed(0)
    model, twin = twins(make, home)
    batches = [batch(64).to(home) for _ in range(4)]
    target = torch.randn_like(first_of(model(batches[0])))
    curves = []
    for trained in (model, Split(twin, ("cuda", "cpu"))):
        torch.manual_seed(2)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
        losses = []
        for step in range(100):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(first_of(trained(batches[step % 4])), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert max(abs(a - b) / abs(a) for a, b in zip(*curves, strict=True)) <= 1e-5


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("home", HOMES)
def test_what_is_recomputed_draws_again_what_it_drew(home):
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False)

    model = Recomputed().to(home)
    split = Split(copy.deepcopy(model), ("cuda", "cpu"), shares=(1, 1))
    assert farthest(model, split, torch.randn(10, 6, device=home), home) <= 1e-12
    assert split.calls_divided == 1


@pytest.mark.parametrize("home", HOMES)
def test_autocast_is_each_devices_own(home):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(home)
    split = Split(copy.deepcopy(model), ("cuda", "cpu"), shares=(1, 1))
    x = torch.randn(32, 16, device=home)
    with torch.autocast(home, torch.bfloat16):
        whole, divided = model(x), split(x)
    assert split.calls_divided == 1
    assert divided.dtype == torch.bfloat16
    torch.testing.assert_close(whole, divided, rtol=2e-2, atol=2e-2)


class Grows(nn.Module):
    """Needs much memory for a sample, for a moment: 100 MiB."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        wide = torch.empty(len(x), 25 << 20, device=x.device)
        return self.layer(x) + wide[:, :4].zero_()


@pytest.mark.parametrize("home", HOMES)
def test_less_is_given_to_a_gpu_without_memory(home, capsys):
    torch.cuda.empty_cache()
    model = Grows().to(home)
    split = Split(copy.deepcopy(model), ("cuda", "cpu"), replicas=1, shares=(3, 1))
    split(torch.randn(8, 4, device=home)).sum().backward()
    split.zero_grad()
    x = torch.randn(32, 4, device=home)
    room = torch.cuda.get_device_properties(0).total_memory
    held = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((held + (1800 << 20)) / room)
    try:
        split(x).sum().backward()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "has no memory for 24 samples: it has 12 at most" in capsys.readouterr().err
    model(x).sum().backward()
    for a, b in zip(model.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_a_part_on_the_cpu_does_not_wait_for_the_gpu():
    """What is drawn for it, it has while the GPU is still at work."""
    gpu = torch.device("cuda", 0)
    side_stream = SideStream(gpu)
    for _ in range(2):  # the first asks for memory, and loads kernels
        with side_stream.begin():
            made = torch.rand(64, device="cuda")
        side_stream.end()
        side_stream.to(made, torch.device("cpu"))
        torch.cuda.synchronize()
        through = occupied()
    with side_stream.begin():
        made = torch.rand(64, device="cuda")
    side_stream.end()
    found = side_stream.to(made, torch.device("cpu"))
    still_at_work = not through.query()
    assert still_at_work
    assert torch.equal(found, side_stream.to(made, gpu).cpu())


def occupied():
    """The GPU at work for a while, from now on; and when that is over."""
    busy = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        busy @ busy
    through = torch.cuda.Event()
    through.record()
    return through


def test_what_comes_back_does_not_wait_for_the_gpu():
    transfer = TransferStream(torch.device("cuda", 0), torch.device("cpu"))
    for _ in range(2):  # the first time it asks for memory, and loads kernels
        torch.cuda.synchronize()
        through = occupied()
        there = torch.arange(1000.0).pin_memory()
        arrived = torch.cuda.Event()
        with transfer.receiving():
            here = transfer.receive(there)
            arrived.record()
        arrived.synchronize()
        still_at_work = not through.query()
    assert still_at_work
    assert torch.equal((here * 2).cpu(), there * 2)


def test_what_is_sent_is_as_it_is_when_the_gpu_has_come_there():
    transfer = TransferStream(torch.device("cuda", 0), torch.device("cpu"))
    value = torch.zeros(1000, device="cuda")
    for number in range(3):
        occupied()
        value.add_(1)
        with transfer.sending():
            sent = transfer.send(value)
        occupied()
        transfer.wait()
        assert torch.equal(sent, torch.full((1000,), number + 1.0))


def test_an_error_on_one_device_leaves_the_others():
    fails = []

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            if x.is_cuda and fails:
                raise ValueError("of this device alone")
            return self.layer(x)

    split = Split(Fails().cuda(), ("cuda", "cpu"), shares=(1, 1))
    x = torch.ones(8, 4, device="cuda")
    split(x).sum().backward()
    fails.append(True)
    with pytest.raises(ValueError, match="of this device alone"):
        split(x)
    fails.clear()
    split(x).sum().backward()
    assert split.calls_divided == 2


def test_a_gpu_that_is_much_faster_is_alone(capsys):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).cuda()
    split = Split(model, ("cuda", "cpu"))
    x = torch.randn(4096, 2048, device="cuda")
    for _ in range(300):
        split(x).square().mean().backward()
        if split.chosen_shares is not None:
            break
    assert split.chosen_shares == {"cuda:0": 4096, "cpu": 0}
    assert "cuda:0 alone" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a GPU, and another one")
@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("kind", MODELS)
def test_several_gpus(kind, home):
    make, batch = MODELS[kind]
    model, twin = twins(make, home)
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    split = Split(twin, (*devices, "cpu"), shares=(*(2 for _ in devices), 1))
    for _ in range(2):
        assert farthest(model, split, batch(20).to(home), home) <= 1e-11
    assert split.why_not == ""
