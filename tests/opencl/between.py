"""Between operators that the CPU does it does others, where the way to the device is longer."""

from __future__ import annotations

import pytest
import torch

from cputrain.opencl import fallback, fallback_policy, fallbacks, reset_fallbacks
from cputrain.opencl.device import DeviceMemory, HostDirty, devices
from cputrain.opencl.fallback_policy import CallSequence, CallsSinceUpload

pytestmark = pytest.mark.usefixtures("without_cumsum")


@pytest.fixture(autouse=True)
def _apart(monkeypatch):
    """A device with memory of its own; nothing is known."""
    monkeypatch.setattr(devices()[0], "shares_memory", False)
    devices()[0].empty_cache()
    fallback_policy._sequences.clear()
    reset_fallbacks()


@pytest.fixture
def way(monkeypatch):
    """Gives a function: the way there and back takes so many seconds."""
    record_download = fallback.record_download

    def takes(seconds):
        monkeypatch.setattr(
            fallback,
            "record_download",
            lambda one, _: record_download(CallsSinceUpload(one.calls, 0.0), seconds),
        )

    return takes


def net(x):
    """Two kernels between two operators that have none."""
    return (x.cumsum(0) * 2 + 1).cumsum(0)


def chosen():
    return {one.operator: one.chosen for one in fallbacks() if one.chosen}


def calls(turns, size=50):
    x = torch.rand(size, size)
    for _ in range(turns):
        found = net(x.to("ocl"))
        torch.testing.assert_close(found.cpu(), net(x))


def test_what_the_cpu_did_waits_there_until_a_kernel_wants_it():
    x = torch.rand(8, 8, device="ocl").cumsum(0)
    assert type(x.memory) is HostDirty
    y = x.t().cumsum(0)  # a view of it, and the CPU's
    assert type(x.memory) is HostDirty
    expected = x.cpu() * 2
    assert type(x.memory) is HostDirty
    torch.testing.assert_close((x * 2).cpu(), expected)
    assert type(x.memory) is DeviceMemory
    torch.testing.assert_close((y + 0).cpu(), (expected / 2).t().cumsum(0))


def test_what_the_cpu_wrote_waits_as_well():
    x = torch.ones(3, 4, device="ocl")
    part = x[1]
    part.cumsum_(0)
    assert type(x.memory) is HostDirty
    x.cumsum_(0)
    assert type(x.memory) is HostDirty
    expected = torch.tensor([[1.0, 1, 1, 1], [2, 3, 4, 5], [3, 4, 5, 6]])
    torch.testing.assert_close((x + 0).cpu(), expected)
    torch.testing.assert_close(part.cpu(), expected[1])
    part.zero_()
    torch.testing.assert_close(x.cpu()[1], torch.zeros(4))


def test_the_way_is_longer(way):
    way(100.0)
    calls(4)
    assert chosen() == {"aten.mul.Tensor": 3, "aten.add.Tensor": 3}


def test_the_way_is_shorter(way):
    """It is seen twice what the CPU takes, and never again."""
    way(0.0)
    calls(6)
    assert chosen() == {"aten.mul.Tensor": 2, "aten.add.Tensor": 2}


def test_others_of_other_forms_are_judged_for_themselves(way):
    way(100.0)
    calls(2)
    fallback_policy._sequences.clear()
    way(0.0)
    calls(6, size=20)
    assert max(chosen().values()) <= 1 + 2


@pytest.mark.parametrize("how", ["needed", "deterministic"])
def test_it_can_be_forbidden(how, way, monkeypatch):
    way(100.0)
    if how == "needed":
        monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    else:
        torch.use_deterministic_algorithms(True)
    try:
        calls(4)
    finally:
        torch.use_deterministic_algorithms(False)
    assert chosen() == {}


def test_random_numbers_stay_the_devices_own(way):
    way(100.0)

    def drawn():
        torch.manual_seed(1)
        x = torch.nn.functional.dropout(torch.ones(40, device="ocl").cumsum(0), 0.5)
        return x.cumsum(0).cpu()

    found = [drawn() for _ in range(5)]
    assert all(torch.equal(one, found[0]) for one in found)
    assert "aten.native_dropout.default" not in chosen()


def test_what_is_written_to_on_the_device_is_not_fetched_for_it(way):
    way(100.0)
    whole = torch.zeros(30, device="ocl")
    for turn in range(5):
        step = torch.ones(30, device="ocl").cumsum(0)
        whole.add_(step)
        torch.testing.assert_close(
            whole.cumsum(0).cpu(), (torch.ones(30).cumsum(0) * (turn + 1)).cumsum(0)
        )
    assert "aten.add_.Tensor" not in chosen()


def test_gradients_are_the_same(way):
    way(100.0)
    weight = torch.rand(20, 20)
    there = weight.to("ocl").requires_grad_()
    weight.requires_grad_()
    for _ in range(5):
        for one in (weight, there):
            one.grad = None
            net(net(one).tanh() @ one).sum().backward()
        torch.testing.assert_close(there.grad.cpu(), weight.grad, rtol=1e-4, atol=1e-4)
    assert chosen()


def test_what_was_long_ago_is_not_between():
    x = torch.ones(10, device="ocl").cumsum(0)
    for _ in range(fallback_policy.MAX_CALLS + 2):
        x = x * 1.5
    x.cumsum(0)
    assert not fallback_policy._sequences


def test_sums_of_both_ways():
    way = CallSequence(("a", "b"), 1.0)
    assert way.should_use_cpu("a")
    for _ in range(2):
        way.record_cpu_time("a", 0.7)
    assert way.should_use_cpu("a")
    assert way.should_use_cpu("b")
    way.record_cpu_time("b", 9.0)  # the first may be slow
    assert way.should_use_cpu("b")
    way.record_cpu_time("b", 0.4)
    assert not way.should_use_cpu("a")
    way.record_cpu_time("a", 0.5)
    assert way.should_use_cpu("a")
    fallback_policy.record_download(CallsSinceUpload(("a", "b"), 0.1), 0.2)
    fallback_policy.record_download(CallsSinceUpload(("a", "b"), 0.4), 0.2)
    assert fallback_policy._sequences["b"].transfer_s == pytest.approx(0.3)


def test_memory_that_waits_is_freed_like_any_other():
    before = torch.ocl.memory_stats()["allocated"]
    x = torch.ones(1000, device="ocl").cumsum(0)
    del x
    assert torch.ocl.memory_stats()["allocated"] == before


def test_it_is_told(way):
    way(100.0)
    calls(3)
    text = fallback.FallbackSummary().describe()
    assert text.endswith("; 4 of these calls have a kernel, but lie between fallbacks")
