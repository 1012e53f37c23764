"""What has no kernel is done by the CPU, and told; an error ends nothing but the call."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch

from cputrain.errors import CputrainError
from cputrain.opencl import fallbacks, reset_fallbacks
from cputrain.opencl.device import devices
from cputrain.opencl.program import compile_kernel
from cputrain.opencl.table import KERNELS
from tests.selected import some

NONE = r"aten.cumprod.default has no OpenCL kernel, and CPUTRAIN_OCL_FALLBACK=error"


def test_which_how_often_and_at_what_cost():
    reset_fallbacks()
    x = torch.rand(64, 64, device="ocl")
    reset_fallbacks()
    for _ in range(3):
        x.cumprod(0)
    (found,) = fallbacks()
    assert (found.operator, found.calls) == ("aten.cumprod.default", 3)
    assert bool(found.moved_bytes) == (not devices()[0].shares_memory)
    assert 0 < found.seconds < 10


def test_copies_between_host_and_device_are_none():
    reset_fallbacks()
    x = torch.ones(3).to("ocl")
    x.copy_(torch.zeros(3))
    assert x.to(torch.int64).sum is not None
    assert float(x[0]) == 0.0
    assert x.cpu().tolist() == [0.0, 0.0, 0.0]
    assert fallbacks() == []


@pytest.mark.usefixtures("forbidden")
def test_it_can_be_forbidden():
    x = torch.ones(3, device="ocl")
    assert (x + 1).cpu().tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(NotImplementedError, match=NONE):
        x.cumprod(0)


def test_an_error_in_a_backward_is_raised_by_it(monkeypatch):
    """It would end the process if it left the kernel."""
    x = torch.ones(3, device="ocl", requires_grad=True)
    for run in (
        lambda y: y.backward(), lambda y: torch.autograd.grad(y, x),
        lambda y: _in_a_thread(y.backward),
    ):  # fmt: skip
        y = x.logcumsumexp(0).sum()
        monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "error")
        with pytest.raises(NotImplementedError, match="has no OpenCL kernel"):
            run(y)
        monkeypatch.delenv("CPUTRAIN_OCL_FALLBACK")
        x.grad = None
        (x * 2).sum().backward()
        assert x.grad.cpu().tolist() == [2.0, 2.0, 2.0]


def test_an_error_in_a_hook_is_raised_by_the_backward():
    def fails(*_):
        raise ValueError("of a hook")

    x = torch.ones(3, device="ocl", requires_grad=True)
    y = x * 2
    for hooked in (x, y):
        handle = hooked.register_hook(fails)
        with pytest.raises(ValueError, match="of a hook"):
            y.sum().backward(retain_graph=True)
        handle.remove()
    handle = x.register_post_accumulate_grad_hook(fails)
    with pytest.raises(ValueError, match="of a hook"):
        y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()


def test_an_error_is_that_of_its_own_backward():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            try:
                gradient.view(7)  # which would be raised at the end
            finally:
                raise KeyError("of the function")

    x = torch.ones(3, device="ocl", requires_grad=True)
    with pytest.raises((KeyError, RuntimeError)):
        Wrong.apply(x).sum().backward()
    z = torch.ones(3, requires_grad=True)
    z.sum().backward()  # of nobody's error
    assert z.grad.tolist() == [1.0] * 3


def _in_a_thread(run):
    caught = []

    def caught_there():
        try:
            run()
        except NotImplementedError as error:
            caught.append(error)

    thread = threading.Thread(target=caught_there)
    thread.start()
    thread.join()
    raise caught[0]


def test_errors_are_torchs_own():
    x = torch.ones(3, device="ocl")
    for wrong in (
        lambda: x + torch.ones(4, device="ocl"),
        lambda: x @ torch.ones(4, 4, device="ocl"),
        lambda: torch.nn.functional.conv2d(x, x),
        lambda: x.view(5),
        lambda: x[7],
        lambda: torch.ones(2, 2, device="ocl").to_sparse(),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            wrong()
    assert (x * 2).sum().item() == 6.0


def test_no_memory_is_told_and_the_process_lives():
    x = torch.ones(3, device="ocl")
    with pytest.raises(torch.OutOfMemoryError, match=r"ocl:0 .* has no memory for .* MiB"):
        torch.empty(1 << 46, device="ocl")
    assert x.sum().item() == 3.0


def test_memory_that_is_kept_for_later_is_given_up_first():
    """Nothing is refused while there is something that nobody has."""
    (device, *_), many = devices(), 1 << 20
    torch.ocl.empty_cache()
    before = device.memory_bytes
    try:
        device.memory_bytes = torch.ocl.memory_stats()["reserved"] + 5 * many
        torch.empty(4 * many, dtype=torch.uint8, device="ocl")  # and is gone
        x = torch.empty(2 * many, dtype=torch.uint8, device="ocl")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(4 * many, dtype=torch.uint8, device="ocl")
        assert x.fill_(1).sum().item() == 2 * many
    finally:
        device.memory_bytes = before


def test_a_kernel_that_does_not_compile_shows_its_log():
    with pytest.raises(CputrainError, match=r"(?s)must compile.*undeclared"):
        compile_kernel(devices()[0], "__kernel void elements() { none = 1; }", "elements", ())


def test_a_launch_tells_of_them_at_its_end(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "import torch, cputrain.opencl\nx = torch.ones(4, device='ocl')\n"
        "for _ in range(3): x.cumprod(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cputrain.launch", "launch", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "1 operator ran on the CPU instead of OpenCL: cumprod (3 calls" in done.stderr


@pytest.mark.parametrize("gradient", [False, True])
def test_what_a_driver_refuses_is_told_and_the_process_lives(gradient, monkeypatch):
    def refused(*_):
        one = torch.ones(4, device="ocl")
        device = one.memory.device
        ready = compile_kernel(
            device, "__kernel void one(__global float* x) { x[0] = 1; }", "one", (None,)
        )
        ready(device.queue, (1 << 40,), (1 << 40,), one.memory.buffer)

    x = torch.ones(3, device="ocl", requires_grad=gradient)
    y = x.sin()
    name = torch.ops.aten.cos.default  # which the gradient of a sine needs
    monkeypatch.setitem(KERNELS, name, refused)
    with pytest.raises(
        RuntimeError, match=r"an OpenCL device failed \(.*WORK_GROUP.*restart the process"
    ):
        y.sum().backward() if gradient else x.cos()
    monkeypatch.undo()
    assert x.cos().sum().item() == pytest.approx(1.6209069)


@pytest.mark.parametrize(
    "broken_by",
    some(itertools.product(["*.bc", "*.sqlite", "last_accessed"], ["garbage", ""]), 1),
    ids=" by ".join,
)
def test_what_is_kept_of_programs_may_be_broken(broken_by, tmp_path):
    broken, by = broken_by
    path = tmp_path / "x.py"
    path.write_text(
        "import torch, cputrain.opencl\n"
        "print((torch.full((3,), 2.0, device='ocl') * 3).sum().item())\n"
    )

    def run():
        return subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        ).stdout  # fmt: skip

    assert run() == "18.0\n"
    for file in (tmp_path / "cache").rglob(broken):
        file.write_text(by)
    assert run() == "18.0\n"


def test_little_of_the_hosts_memory_is_kept(monkeypatch):
    (device, *_), many = devices(), 1 << 20
    if not device.shares_memory:
        pytest.skip("needs an OpenCL device that has the host's memory")
    torch.ocl.empty_cache()
    monkeypatch.setattr(device, "memory_bytes", torch.ocl.memory_stats()["reserved"] + 80 * many)
    for size in range(1, 33):  # each is of another size, and gone at once
        torch.empty(size * many, dtype=torch.uint8, device="ocl")
        stats = torch.ocl.memory_stats()
        assert stats["reserved"] - stats["allocated"] <= 80 * many // 8 + size * many


def test_types_that_no_kernel_knows_are_put_together():
    one = torch.arange(3.0).half().to("ocl")
    assert torch.cat([one, one]).tolist() == [0, 1, 2] * 2
    assert torch.stack([one.bfloat16()] * 2).tolist() == [[0, 1, 2]] * 2


def test_running_statistics_are_kept_whoever_computes_them():
    x = torch.randn(4, 3, 5, 5) + 5
    twins = [torch.nn.BatchNorm2d(3).bfloat16().to(where) for where in ("cpu", "ocl")]
    for one in twins:
        one(x.bfloat16().to(one.weight.device))
    torch.testing.assert_close(twins[1].running_mean.cpu(), twins[0].running_mean)
    torch.testing.assert_close(twins[1].running_var.cpu(), twins[0].running_var)


def test_what_torch_refuses_is_refused():
    x = torch.ones(2, 3, 3, device="ocl")
    image, window = torch.ones(1, 1, 4, 4, device="ocl"), torch.ones(1, 1, 2, 2, device="ocl")
    for wrong in (
        lambda: torch.mm(x, x), lambda: torch.bmm(x[0], x[0]),
        lambda: torch.nn.functional.conv2d(image, window, stride=0),
        lambda: torch.nn.functional.conv2d(image, window, dilation=0),
        lambda: torch.nn.functional.conv_transpose2d(image, window, output_padding=1),
        lambda: torch.nn.functional.silu(x.long()),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            wrong()
    assert (1 / torch.tensor([-0.0]).to("ocl").abs()).item() == float("inf")
