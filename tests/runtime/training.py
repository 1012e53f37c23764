"""A script that trains in every way the tests ask about, and prints what came of it as JSON.

Each function is one question: its answer, and how many fused kernels ran meanwhile.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn, optim

CASES: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam maximize": lambda p: optim.Adam(p, lr=0.0001, maximize=True, betas=(0.8, 0.9)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.3),
    "SGD": lambda p: optim.SGD(p, lr=0.05),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "SGD dampening": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.01, weight_decay=0.01),
}

KINDS = (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad)


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    # SGD is fused from 20 tensors on
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.Tanh(),
        *(layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())),
        nn.Linear(32, 4),
    )


def train(model: nn.Module, optimizer: Any, steps: int = 20, seed: int = 1) -> list[float]:
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 16)
        loss = (model(x) - x[:, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def shape(value: Any) -> Any:
    """What a value is made of, without its numbers."""
    if isinstance(value, torch.Tensor):
        return ["tensor", list(value.shape), str(value.dtype), list(value.stride())]
    if isinstance(value, dict):
        return {str(key): shape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shape(item) for item in value]
    return repr(value)


def losses_and_states() -> Any:
    found = {}
    for name, make in CASES.items():
        model = model_of()
        optimizer = make(model.parameters())
        losses = train(model, optimizer)
        pickled = pickle.loads(pickle.dumps(optimizer))
        copied = copy.deepcopy(optimizer)
        shapes = [
            shape(part)
            for one in (optimizer, pickled, copied)
            for part in (one.state_dict(), one.param_groups, sorted(vars(one)))
        ]
        found[name] = [losses, shapes, train(model, copied, 2)]
    return found


def schedulers_scalers_and_late_groups() -> Any:
    model, late = model_of(), nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule: Any = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    torch.manual_seed(1)
    losses, seen = [], []
    optimizer.register_step_post_hook(lambda o, *_: seen.append(o.param_groups[0]["fused"]))
    for step in range(20):
        if step == 5:
            optimizer.add_param_group({"params": list(late.parameters()), "lr": 0.01})
            schedule = optim.lr_scheduler.StepLR(optimizer, 3)
        x = torch.randn(8, 16)
        y = model(x)
        loss = ((late(y) if step >= 9 else y) - x[:, :4]).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    return [losses, seen, shape(optimizer.state_dict()), shape(scaler.state_dict())]


def gradients_that_come_late() -> Any:
    found = {}
    for name, make in CASES.items():
        torch.manual_seed(0)
        early, late = ([nn.Parameter(torch.randn(5)) for _ in range(12)] for _ in range(2))
        optimizer = make([*early, *late])
        for step in range(6):
            optimizer.zero_grad()
            sum((x * x).sum() for x in (early + late if step in (2, 3, 5) else early)).backward()
            optimizer.step()
        found[name] = [x.tolist() for x in early + late]
    return found


def memory_in_another_order() -> Any:
    found = {}
    for name, make in CASES.items():
        torch.manual_seed(0)
        base = torch.randn(6, 6)
        view = nn.Parameter(base[:, :3])
        picture = nn.Parameter(torch.randn(4, 3, 2, 2))
        turned = nn.Parameter(torch.randn(4, 3))
        wide = nn.Parameter(torch.randn(3, 4).t())
        weight = torch.randn(4, 3, 2, 2)
        picture.grad = torch.randn(4, 3, 2, 2)
        optimizers = [make([one]) for one in (view, picture, turned, wide)]
        for step in range(6):
            if step == 2:
                picture.data = picture.data.to(memory_format=torch.channels_last)
            loss = (view**2).sum() + (picture**2 * weight).sum() + (wide**3).sum()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            turned.grad = torch.arange(12.0).reshape(3, 4).t()
            for optimizer in optimizers:
                optimizer.step()
        tensors = (base, view, picture, turned, wide)
        found[name] = [one.detach().flatten().tolist() for one in tensors]
    return found


def channels_last_models() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten())
    model = model.to(memory_format=torch.channels_last)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def choices_of_the_script() -> Any:
    for kind in KINDS:
        for options in ({"foreach": True}, {"foreach": False}, {"fused": False}):
            model = model_of()
            train(model, kind(model.parameters(), lr=0.01, **options), 2)
        parameter = torch.ones(3, requires_grad=True).clone()
        parameter.retain_grad()
        parameter.grad = torch.ones(3)
        kind([parameter], lr=0.1, differentiable=True).step()
    model = model_of()
    train(model, optim.RMSprop(model.parameters()), 2)
    return train(model, optim.Adam(model.parameters(), lr=torch.tensor(0.01)), 2)


class Mine(nn.Parameter):
    """A subclass, which may do anything in its operations."""


def tensors_kernels_cannot_take() -> Any:
    def parameters() -> Iterator[nn.Parameter]:
        torch.manual_seed(0)
        for dtype in (torch.bfloat16, torch.float16, torch.complex64):
            yield nn.Parameter(torch.randn(4, dtype=dtype))
        yield Mine(torch.randn(4))

    found = []
    for make in CASES.values():
        for parameter in parameters():
            optimizer = make([parameter])
            for _ in range(3):
                optimizer.zero_grad()
                (parameter * parameter.conj()).real.float().sum().backward()
                optimizer.step()
            found.append(abs(parameter.detach()).float().tolist())
    meta = nn.Parameter(torch.ones(3, device="meta"))
    meta.grad = torch.ones(3, device="meta")
    optim.SGD([meta], lr=0.1, momentum=0.9).step()
    return found


def _sparse(make: Callable[[Any], Any], sparse_at: tuple[int, ...]) -> list[float]:
    torch.manual_seed(0)
    table, dense = nn.Embedding(10, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(6))
    optimizer = make([*table.parameters(), *dense.parameters()])
    for step in range(6):
        table.sparse = step in sparse_at
        optimizer.zero_grad()
        rows = table(torch.tensor([1, 2, 2, 9]))
        sum(layer(rows).square().sum() for layer in dense).backward()
        optimizer.step()
    found: list[float] = table.weight.flatten().tolist()
    return found


SPARSE = (
    lambda p: optim.SGD(p, lr=0.1),
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: optim.Adagrad(p, lr=0.1),
)


def sparse_gradients() -> Any:
    return [_sparse(make, tuple(range(6))) for make in SPARSE]


def gradients_that_turn_sparse() -> Any:
    return [_sparse(make, (2, 3, 5)) for make in SPARSE]


class Decaying(optim.Adam):
    """A step of its own around Adam's."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure)


def closures_and_subclasses() -> Any:
    found = []
    for kind in (Decaying, optim.SGD, optim.Adam):
        model = model_of()
        optimizer = kind(model.parameters(), lr=0.01)
        x = torch.randn(8, 16)

        def closure(optimizer: Any = optimizer, model: Any = model, x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :4]).square().mean()
            loss.backward()
            return loss

        found.append([float(optimizer.step(closure)) for _ in range(10)])
    return found


def compiled_steps() -> Any:
    model = model_of()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(4):
        model(torch.ones(1, 16)).sum().backward()
        step()
    return [parameter.sum().item() for parameter in model.parameters()]


def numbers_of_double_size() -> Any:
    torch.set_default_dtype(torch.float64)
    model = model_of()
    found = train(model, optim.Adam(model.parameters(), lr=0.01))
    torch.set_default_dtype(torch.float32)
    return found


def counted(kernel: Any, calls: list[int]) -> Any:
    """A kernel that counts how often it runs."""

    def count(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        return kernel(*args, **options)

    return count


def main() -> None:
    calls = [0]
    for kernel in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
        setattr(torch, kernel, counted(getattr(torch, kernel), calls))
    found = {}
    for question in (
        losses_and_states, schedulers_scalers_and_late_groups, gradients_that_come_late,
        memory_in_another_order, channels_last_models, choices_of_the_script,
        tensors_kernels_cannot_take, sparse_gradients, gradients_that_turn_sparse,
        closures_and_subclasses, numbers_of_double_size, compiled_steps,
    ):  # fmt: skip
        calls[0] = 0
        found[question.__name__] = [question(), calls[0]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
