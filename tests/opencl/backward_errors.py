"""Whatever is raised within a backward is raised by it: autograd's C++ would end the process."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cputrain.opencl.deferred_errors import Guard

ERRORS = {"Exception": ValueError, "Ctrl-C": KeyboardInterrupt, "exit": SystemExit}


def of_function(_lin, x, fail):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, value):
            return value * 2

        @staticmethod
        def backward(_ctx, _gradient):
            fail()

    return Fails.apply(x)


def of_tensor(lin, x, fail):
    y = lin(x)
    y.register_hook(fail)
    return y


def of_leaf(lin, x, fail):
    x.register_hook(fail)
    return lin(x)


def of_accumulated(lin, x, fail):
    x.register_post_accumulate_grad_hook(fail)
    return lin(x)


def of_module(lin, x, fail):
    lin.register_full_backward_hook(fail)
    return lin(x)


def before_module(lin, x, fail):
    lin.register_full_backward_pre_hook(fail)
    return lin(x)


def of_node(lin, x, fail):
    y = lin(x)
    y.grad_fn.register_hook(fail)
    return y


def before_node(lin, x, fail):
    y = lin(x)
    y.grad_fn.register_prehook(fail)
    return y


def of_saved(lin, x, fail):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
        return lin(x).square()


def of_checkpoint(lin, x, fail, *, use_reentrant=False):
    runs = []

    def forward(value):
        runs.append(value)
        if len(runs) > 1:
            fail()
        return lin(value).relu()

    return checkpoint(forward, x, use_reentrant=use_reentrant)


def of_reentrant(lin, x, fail):
    return of_checkpoint(lin, x, fail, use_reentrant=True)


PLACES = (of_function, of_tensor, of_leaf, of_accumulated, of_module, before_module, of_node,
          before_node, of_saved, of_checkpoint, of_reentrant)  # fmt: skip


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_it_is_raised_by_the_backward(place, kind):
    def fail(*_):
        raise ERRORS[kind]("of a hook")

    lin = nn.Linear(4, 4).to("ocl")
    x = torch.randn(4, 4).to("ocl").requires_grad_()
    loss = place(lin, x, fail).sum()
    with pytest.raises(ERRORS[kind], match="of a hook"):
        loss.backward()
    fresh = torch.randn(4, 4).to("ocl").requires_grad_()
    (fresh * fresh).sum().backward()  # nothing is left of it
    assert torch.equal(fresh.grad.cpu(), 2 * fresh.detach().cpu())


def test_a_backward_within_one_raises_its_own_error():
    caught = []

    class TriesAnotherBackward(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, value):
            return value * 2

        @staticmethod
        def backward(_ctx, gradient):
            def fail(*_):
                raise ValueError("of a hook")

            with torch.enable_grad():
                y = torch.ones(3).to("ocl").requires_grad_() * 2
                y.grad_fn.register_hook(fail)
                try:
                    y.sum().backward()
                except ValueError as error:
                    caught.append(str(error))
            return gradient * 2

    x = torch.randn(4, 4).to("ocl").requires_grad_()
    TriesAnotherBackward.apply(x).sum().backward()
    assert caught == ["of a hook"]
    assert torch.equal(x.grad.cpu(), torch.full((4, 4), 2.0))


def test_the_type_of_the_device_is_asked_for_without_bytecode_outside_of_a_backward():
    constant = vars(Guard)["type_"]
    x = torch.randn(4).to("ocl").requires_grad_()
    seen = []
    y = x * 2
    y.register_hook(lambda _: seen.append(vars(Guard)["type_"]))
    y.sum().backward()
    assert vars(Guard)["type_"] is constant is not seen[0]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_at_any_moment_of_a_backward_is_raised_by_it():
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(8)]
    ).to("ocl")
    x = torch.randn(4, 16).to("ocl")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    num_raised = 0
    try:
        for number in range(60):
            loss = model(x).square().sum()
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (number + 1))
                loss.backward()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                num_raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert num_raised > 10
