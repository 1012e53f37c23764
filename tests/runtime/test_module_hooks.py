"""Hooks on modules: where a model has them, options leave it as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.settings import precision


def test_hooks_are_found_as_long_as_they_are_there() -> None:
    hooks = ModuleHooks(torch)
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert hooks.find(net) == ""
    handle = net[1].register_forward_hook(lambda *_: None)
    assert hooks.find(net) == "1 (ReLU) has a hook"
    assert hooks.find(copy.deepcopy(net)) == "1 (ReLU) has a hook"
    handle.remove()
    assert hooks.find(net) == ""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert hooks.find(net) == "every module has a hook"
    handle.remove()
    assert hooks.find(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))) == ""


def test_hooks_of_torch_itself_do_not_count() -> None:
    net = nn.utils.spectral_norm(nn.Linear(2, 2))
    assert net._forward_pre_hooks
    assert ModuleHooks(torch).find(net) == ""


def test_a_hook_that_is_registered_later_sees_float32(applied: Callable[..., Any]) -> None:
    found = applied(precision, "bf16")
    net, seen = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    net(torch.ones(1, 2))
    handle = net[0].register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    net(torch.ones(1, 2))
    handle.remove()
    net[1].forward = lambda out: seen.append(out.dtype) or out  # type: ignore[method-assign]
    net(torch.ones(1, 2))
    assert seen == [torch.float32, torch.bfloat16]
    assert "Sequential left without autocast: 0 (Linear) has a hook" in found.describe()


def test_a_function_of_the_script_computes_in_float32(applied: Callable[..., Any]) -> None:
    """Autocast is off in a backward: what its forward kept would be of another dtype."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            return grads[0] @ weight.T, x.T @ grads[0]

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = Product.apply(super().forward(x), self.weight)  # type: ignore[no-untyped-call]
            return out

    applied(precision, "bf16")
    net = Net(2, 2)
    net(torch.ones(3, 2)).sum().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.dtype is torch.float32
