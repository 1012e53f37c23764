"""Small models that mix samples or keep state, written the way their authors write them.

`PATTERNS` has each with what is expected of it: "divided", "either", or a word of the reason for
which it is left undivided. A script trains one by name: `python zoo.py TabNet`.
"""
# ruff: noqa: ARG004, ARG005  (functions and batches have the arguments of all of them)

from __future__ import annotations

import collections
import copy
import itertools
import math
import os
import random
import sys
import threading
import types
from contextvars import ContextVar
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 20
WIDTH = 6
PATTERNS: dict[str, Pattern] = {}


class Pattern(NamedTuple):
    """A model, its batches, and what is expected of them."""

    make: Callable[[], nn.Module]
    expected: str
    """ "divided", "either", or a word of the reason."""
    batch: Callable[[int], Any]
    """The arguments of a step: a tuple, or a dict with "args" and "kwargs"."""
    between: Callable[[nn.Module, int], None]
    """What the script does to its model before a step."""
    step: Callable[..., list[Any]] | None
    """A training step other than one forward, one backward, one update."""
    reset: Callable[[], None]
    """Sets what is global as it was."""
    rtol: float


def samples(step: int) -> int:
    """Return 8, and 5 for the last batch of an epoch."""
    return 5 if step % 8 == 7 else 8


def rows(step: int, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(samples(step), *(shape or (WIDTH,)), generator=generator)


def whole_numbers(step: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randint(high, (samples(step), *shape), generator=generator)


def features(step: int) -> tuple[torch.Tensor, ...]:
    return (rows(step),)


def images(step: int) -> tuple[torch.Tensor, ...]:
    return (rows(step, 4, 4, 4),)


def sequences(step: int) -> tuple[torch.Tensor, ...]:
    return (rows(step, 5, WIDTH),)


def labelled(step: int) -> tuple[torch.Tensor, ...]:
    return rows(step), whole_numbers(step, 3)


def nothing(*_: Any) -> None:
    pass


def pattern(
    expected: str,
    batch: Callable[[int], Any] = features,
    *,
    between: Callable[[nn.Module, int], None] = nothing,
    step: Callable[..., list[Any]] | None = None,
    reset: Callable[[], None] = nothing,
    rtol: float = 1e-9,
    name: str = "",
) -> Callable[[Any], Any]:
    """Register a class or a function that makes a model."""

    def registered(make: Any) -> Any:
        PATTERNS[name or make.__name__] = Pattern(make, expected, batch, between, step, reset, rtol)
        return make

    return registered


class Net(nn.Module):
    """A model with a layer before and a layer after what its subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.mix(torch.tanh(self.first(x))))

    def mix(self, h: torch.Tensor) -> torch.Tensor:
        return h


# -- batch statistics


class GhostBatchNorm(nn.Module):
    def __init__(self, width: int, virtual: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(width)
        self.virtual = virtual

    def forward(self, x):
        chunks = x.chunk(int(np.ceil(x.shape[0] / self.virtual)), 0)
        return torch.cat([self.bn(chunk) for chunk in chunks], 0)


@pattern("other dimensions")
class TabNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gbn = GhostBatchNorm(WIDTH, 4)

    def mix(self, h):
        return F.glu(torch.cat([self.gbn(h)] * 2, 1))


@pattern("divided")
class TabNetWithLargeVirtualBatches(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gbn = GhostBatchNorm(WIDTH, 128)

    def mix(self, h):
        return self.gbn(h)


@pattern("mean")
class BatchNormByHand(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("running", torch.zeros(WIDTH))

    def mix(self, h):
        mean, var = h.mean(0), h.var(0, unbiased=False)
        with torch.no_grad():
            self.running.mul_(0.9).add_(0.1 * mean)
        return (h - mean) / (var + 1e-5).sqrt() * self.gamma


@pattern("either")
class BatchRenorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("std", torch.ones(WIDTH))
        self.register_buffer("steps", torch.tensor(0))

    def mix(self, h):
        mean, std = h.mean(0), h.std(0) + 1e-3
        r = (std.detach() / self.std).clamp(0.5, 2.0)
        d = ((mean.detach() - self.mean) / self.std).clamp(-1, 1)
        self.mean += 0.1 * (mean.detach() - self.mean)
        self.std += 0.1 * (std.detach() - self.std)
        self.steps += 1
        return (h - mean) / std * r + d


@pattern("divided", images)
class ConvolutionsWithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(24, 3),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


@pattern("value")
class BatchNormWithCumulativeAverage(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH, momentum=None)

    def mix(self, h):
        return self.bn(h)


@pattern("divided", images)
class InstanceGroupAndLocalResponseNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.norms = nn.ModuleList(
            [nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.LocalResponseNorm(2)]
        )

    def forward(self, x):
        x = self.conv(x)
        for norm in self.norms:
            x = x + norm(x)
        return x.mean((2, 3))


@pattern("batch", images)
class InstanceNormWithRunningStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.norm = nn.InstanceNorm2d(4, track_running_stats=True)

    def forward(self, x):
        return self.norm(self.conv(x)).flatten(1)


@pattern("other numbers")
class LayerNormOverSamples(Net):
    def mix(self, h):
        return F.layer_norm(h.t(), (h.size(0),)).t()


@pattern("cuts", lambda step: (rows(0, 4, 4, 4),))
class LayerNormOverAll(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.conv(x)
        return F.layer_norm(x.reshape(2, -1), (x.numel() // 2,)).reshape(x.shape).flatten(1)


@pattern("divided")
class WeightStandardised(Net):
    def mix(self, h):
        weight = self.first.weight
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5)
        return F.linear(h, weight)


@pattern("divided")
class SpectralNormByParametrization(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(self.first)


@pattern("self.weight")
class SpectralNormByHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.spectral_norm(self.first)


@pattern("either")
class WeightNormByParametrization(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(self.first)


@pattern("self.weight")
class WeightNormByHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.weight_norm(self.first)


# -- self-supervised models


@torch.no_grad()
def momentum_by_data(one, other, m):
    for param_q, param_k in zip(one.parameters(), other.parameters(), strict=True):
        param_k.data = param_k.data * m + param_q.data * (1.0 - m)


@torch.no_grad()
def momentum_in_place(one, other, m):
    for param_q, param_k in zip(one.parameters(), other.parameters(), strict=True):
        param_k.mul_(m).add_(param_q, alpha=1 - m)


class MoCoBase(nn.Module):
    def __init__(self, update) -> None:
        super().__init__()
        self.encoder_q = nn.Linear(WIDTH, 4)
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, 40), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.update = update

    @torch.no_grad()
    def enqueue(self, keys):
        pointer = int(self.queue_ptr)
        count = min(len(keys), 40 - pointer)
        self.queue[:, pointer : pointer + count] = keys[:count].T
        self.queue_ptr[0] = (pointer + count) % 40

    def forward(self, x):
        q = F.normalize(self.encoder_q(x), dim=1)
        with torch.no_grad():
            self.update(self.encoder_q, self.encoder_k, 0.9)
            k = F.normalize(self.encoder_k(x.flip(1)), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        self.enqueue(k)
        return torch.cat([positive, negative], 1) / 0.2


@pattern("encoder_k")
class MoCoByData(MoCoBase):
    def __init__(self) -> None:
        super().__init__(momentum_by_data)


@pattern("encoder_k")
class MoCoInPlace(MoCoBase):
    def __init__(self) -> None:
        super().__init__(momentum_in_place)


@pattern("either")
class MoCoQueueOnly(MoCoBase):
    def __init__(self) -> None:
        super().__init__(nothing)


@pattern("divided")
class BYOLWithUpdateOutside(Net):
    def __init__(self) -> None:
        super().__init__()
        self.target = copy.deepcopy(self.first).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            target = self.target(x.flip(1))
        return self.first(x), target


def byol_step(call, model, arguments, optimizer, _step):
    optimizer.zero_grad()
    online, target = call(*arguments)
    loss = 2 - 2 * F.cosine_similarity(online, target).mean()
    loss.backward()
    optimizer.step()
    momentum_in_place(model.first, model.target, 0.9)
    return [loss]


PATTERNS["BYOL"] = PATTERNS["BYOLWithUpdateOutside"]._replace(step=byol_step)
PATTERNS["MeanTeacherByData"] = PATTERNS["BYOLWithUpdateOutside"]._replace(
    between=lambda model, _: momentum_by_data(model.first, model.target, 0.9)
)


@pattern("target")
class BYOLWithUpdateInside(BYOLWithUpdateOutside):
    def forward(self, x):
        momentum_in_place(self.first, self.target, 0.9)
        return super().forward(x)


@pattern("over the samples")
class SimCLR(Net):
    def forward(self, x):
        one = F.normalize(self.first(x), dim=1)
        other = F.normalize(self.first(x + 0.1), dim=1)
        z = torch.cat([one, other])
        scores = z @ z.T / 0.5
        scores.fill_diagonal_(-1e9)
        n = x.size(0)
        targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return F.cross_entropy(scores, targets, reduction="none")


@pattern("divided")
class AugmentedCopiesAlongTheBatch(Net):
    def forward(self, x):
        both = self.first(torch.cat([x, x.flip(1)], 0))
        one, other = both.chunk(2, 0)
        return torch.cat([one, other], 1), F.mse_loss(one, other, reduction="none")


@pattern("self.center")
class DINO(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, WIDTH))

    def forward(self, x):
        student, teacher = self.first(x), self.first(x * 0.9).detach()
        out = F.softmax((teacher - self.center) / 0.04, -1)
        self.center = self.center * 0.9 + teacher.mean(0, keepdim=True) * 0.1
        return torch.sum(-out * F.log_softmax(student / 0.1, -1), -1)


@pattern("sum")
class VectorQuantised(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(7, WIDTH))
        self.register_buffer("usage", torch.zeros(7))

    def mix(self, h):
        nearest = torch.cdist(h, self.codes).argmin(1)
        hot = F.one_hot(nearest, 7).to(h)
        with torch.no_grad():
            self.usage.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            update = hot.t() @ h
            self.codes.copy_(0.9 * self.codes + 0.1 * update / (self.usage.unsqueeze(1) + 1e-5))
        quantised = self.codes[nearest]
        return h + (quantised - h).detach()


@pattern("divided")
class VectorQuantisedWithFixedCodes(Net):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(7, WIDTH)

    def forward(self, x):
        h = self.first(x)
        nearest = torch.cdist(h, self.codes.weight).argmin(1)
        quantised = self.codes(nearest)
        return h + (quantised - h).detach(), (quantised - h.detach()).square().mean(1), nearest


@pattern("either")
class MemoryBank(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(50, WIDTH))

    def forward(self, x, index):
        h = self.first(x)
        old = self.bank.index_select(0, index)
        with torch.no_grad():
            self.bank.index_copy_(0, index, old * 0.5 + h.detach() * 0.5)
        return h @ self.bank.t().clone(), old


PATTERNS["MemoryBank"] = PATTERNS["MemoryBank"]._replace(
    batch=lambda step: (rows(step), (torch.arange(samples(step)) * 5 + step) % 50)
)


@pattern("over the samples")
class BarlowTwins(Net):
    def forward(self, x):
        one, other = self.first(x), self.first(x.flip(1))
        return one.T @ other / x.size(0)


@pattern("over the samples")
class NeighbourhoodOfTheBatch(Net):
    def mix(self, h):
        return torch.softmax(h @ h.T, -1) @ h


# -- domain adaptation and functions of autograd


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.alpha * gradient, None


class NormaliseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1e-3)


@pattern("divided")
class DomainAdaptation(Net):
    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h), self.last(ReverseGradient.apply(h, 0.3))


@pattern("too many calls", lambda step: {"args": features(step), "kwargs": {"alpha": step / 20}})
class DomainAdaptationWithAlphaByStep(Net):
    def forward(self, x, alpha):
        h = torch.tanh(self.first(x))
        return self.last(h), self.last(ReverseGradient.apply(h, alpha))


@pattern("self.steps")
class DomainAdaptationWithAlphaInside(Net):
    steps = 0

    def forward(self, x):
        self.steps += 1
        alpha = 2 / (1 + math.exp(-self.steps / 10)) - 1
        h = torch.tanh(self.first(x))
        return self.last(h), self.last(h * alpha)


def thaw(model, step):
    if step == 10:
        model.first.requires_grad_(True)


@pattern("linalg_vector_norm", between=thaw)
class GradientNormalisedBehindALayerThatThaws(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)

    def mix(self, h):
        return NormaliseGradient.apply(h)


def wants_gradients(step):
    return (rows(step).requires_grad_(step >= 10),)


@pattern("linalg_vector_norm", wants_gradients)
class GradientNormalisedOfAnInputThatAsksForItLater(Net):
    def forward(self, x):
        return self.last(NormaliseGradient.apply(x))


@pattern("divided", between=thaw)
class FrozenLayerThaws(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


@pattern("divided", lambda step: (rows(step).requires_grad_(),))
class InputWithGradient(Net):
    pass


@pattern("either")
class GradientPenaltyInside(Net):
    def forward(self, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            score = self.last(torch.tanh(self.first(x)))
            (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score, (gradient.norm(2, dim=1) - 1) ** 2


@pattern("either")
class GradientPenaltyOfRows(Net):
    def forward(self, x):
        x = x.detach().requires_grad_()
        score = self.last(torch.tanh(self.first(x)))
        (gradient,) = torch.autograd.grad(score, x, torch.ones_like(score), create_graph=True)
        return score, gradient.square().sum(1)


# -- mixtures of experts


class Experts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))


@pattern("batch")
class ExpertsWithCapacity(Experts):
    def mix(self, h):
        weights, chosen = self.gate(h).softmax(1).max(1)
        hot = F.one_hot(chosen, 3)
        place = (hot.cumsum(0) * hot).sum(1)
        kept = (place <= 3).to(h)
        return torch.stack([e(h) for e in self.experts], 1)[torch.arange(len(h)), chosen] * (
            weights * kept
        ).unsqueeze(1)


@pattern("divided")
class ExpertsChosenByIndex(Experts):
    def mix(self, h):
        weights, chosen = self.gate(h).softmax(1).max(1)
        every = torch.stack([expert(h) for expert in self.experts], 1)
        return every[torch.arange(len(h)), chosen] * weights.unsqueeze(1)


@pattern("batch")
class ExpertsByMask(Experts):
    def mix(self, h):
        chosen = self.gate(h).argmax(1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            out[mask] = expert(h[mask])
        return out


@pattern("self.auxiliary")
class ExpertsWithAuxiliaryAttribute(Experts):
    def mix(self, h):
        chances = self.gate(h).softmax(1)
        self.auxiliary = 3 * chances.mean(0).square().sum()
        return sum(chances[:, n : n + 1] * e(h) for n, e in enumerate(self.experts))


@pattern("losses")
class ExpertsWithListOfLosses(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.losses = []

    def mix(self, h):
        chances = self.gate(h).softmax(1)
        self.losses.append(chances.square().sum(1))
        return sum(chances[:, n : n + 1] * e(h) for n, e in enumerate(self.experts))


LOSSES: list[torch.Tensor] = []


@pattern("LOSSES", reset=LOSSES.clear)
class ExpertsWithGlobalListOfLosses(Experts):
    def mix(self, h):
        chances = self.gate(h).softmax(1)
        LOSSES.append(chances.square().sum(1).detach())
        return sum(chances[:, n : n + 1] * e(h) for n, e in enumerate(self.experts))


# -- hooks


@pattern("hook")
def forward_hook():
    model = Net()
    model.seen = []
    model.first.register_forward_hook(lambda _m, _a, out: model.seen.append(out.shape[0]))
    return model


@pattern("hook")
class TensorHookInForward(Net):
    def mix(self, h):
        h.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-3))
        return h


@pattern("graph")
class HookOnANodeOfTheGraph(Net):
    def mix(self, h):
        h = h * 1.5
        h.grad_fn.register_prehook(lambda given: (given[0] / (given[0].norm() + 1e-3),))
        return h


@pattern("divided")
def hook_on_a_parameter():
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-3))
    return model


def hook_later(model, step):
    if step == 10:
        model.first.register_forward_hook(lambda _m, _a, out: out - out.mean(0))


@pattern("hook", between=hook_later)
class HookInTheMiddle(Net):
    pass


@pattern("grad")
class KeepsAGradient(Net):
    def mix(self, h):
        h.retain_grad()
        return h * 2


@pattern("self.activations")
class KeepsActivations(Net):
    def mix(self, h):
        self.activations = h.detach()
        return h


# -- random numbers


@pattern("divided")
class RDrop(Net):
    def forward(self, x):
        one, other = (self.last(F.dropout(self.first(x), 0.3)) for _ in range(2))
        return one, other, F.kl_div(one.log_softmax(1), other.softmax(1), reduction="none")


@pattern("Python or NumPy")
class LayerDropByPython(Net):
    def mix(self, h):
        return h if random.random() < 0.5 else h * 2


@pattern("value")
class LayerDropByItem(Net):
    def mix(self, h):
        return h if torch.rand(1).item() < 0.5 else h * 2


@pattern("Python or NumPy")
class LayerDropByNumpy(Net):
    def mix(self, h):
        return h * float(np.random.rand())


@pattern("divided")
class StochasticDepthPerSample(Net):
    def mix(self, h):
        mask = h.new_empty((h.shape[0],) + (1,) * (h.ndim - 1)).bernoulli_(0.7)
        return h + h.square() * mask.div_(0.7)


@pattern("divided")
class NoiseOfEveryKind(Net):
    def mix(self, h):
        h = h + 0.1 * torch.randn_like(h) + 0.1 * torch.rand(h.size(0), 1)
        h = h * torch.bernoulli(torch.full_like(h, 0.8)) + torch.normal(0.0, 0.1, h.shape)
        return h + torch.empty_like(h).exponential_() * 0.01 + torch.rand(WIDTH)


@pattern("randperm")
class Mixup(Net):
    def forward(self, x):
        order = torch.randperm(x.size(0))
        return super().forward(0.7 * x + 0.3 * x[order])


@pattern("order")
class MixupByFlip(Net):
    def forward(self, x):
        return super().forward(0.7 * x + 0.3 * x.flip(0))


@pattern("order", images)
class CutmixByRoll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 2, 3)

    def forward(self, x):
        x = x.clone()
        x[:, :, 1:3, 1:3] = x.roll(1, 0)[:, :, 1:3, 1:3]
        return self.conv(x).flatten(1)


@pattern("Python or NumPy")
class MixupWithBeta(Net):
    def forward(self, x):
        return super().forward(x * np.random.beta(1.0, 1.0))


@pattern("random numbers")
class GeneratorInAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def mix(self, h):
        return h + torch.rand(h.shape, generator=self.generator)


@pattern("generator")
class PythonsGeneratorInAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(5)

    def mix(self, h):
        return h * self.generator.random()


@pattern("generator")
class NumpysGeneratorInAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(5)

    def mix(self, h):
        return h * float(self.generator.random())


@pattern("either")
class SeedsInForward(Net):
    def mix(self, h):
        torch.manual_seed(7)
        return h + torch.rand_like(h)


def more_dropout(model, step):
    model.drop.p = min(0.5, 0.25 * (step // 5))


@pattern("divided", between=more_dropout)
class DropoutScheduled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def mix(self, h):
        return self.drop(h)


@pattern("either", images)
class DropoutOfChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)
        self.alpha = nn.AlphaDropout(0.2)

    def forward(self, x):
        return self.alpha(F.dropout2d(self.conv(x), 0.3)).flatten(1)


@pattern("divided", images)
class DropoutOfChannelsAlone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)

    def forward(self, x):
        return F.dropout2d(self.conv(x), 0.3).flatten(1)


@pattern("random numbers")
class SamplesFromItsOutput(Net):
    def forward(self, x):
        chances = super().forward(x).softmax(1)
        return chances, torch.multinomial(chances, 1)


@pattern("divided")
class VariationalAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decoder(z), mean, log_var


@pattern("other numbers", lambda step: (rows(0, WIDTH),))
class DropoutByBatchSize(Net):
    def mix(self, h):
        return F.dropout(h, 0.5 if len(h) > 4 else 0.1)


# -- the batch and its size


@pattern("samples")
class ThresholdOfBatchSize(Net):
    def mix(self, h):
        return h * 2 if h.size(0) > 4 else h


@pattern("number")
class LengthAsNumber(Net):
    def mix(self, h):
        return h / len(h)


@pattern("number")
class LengthAsTensor(Net):
    def mix(self, h):
        return h / torch.tensor(len(h))


@pattern("number")
class LengthInFull(Net):
    def mix(self, h):
        return h * torch.full((), 0.5 if len(h) > 4 else 1.0)


@pattern("number")
class SliceOfAWeightByBatchSize(Net):
    def mix(self, h):
        begin = 2 if len(h) > 4 else 0
        return h * self.first.weight[begin : begin + 1, :]


@pattern("output", lambda step: (rows(0, WIDTH),))
class SaysWhetherTheBatchIsLarge(Net):
    def forward(self, x):
        return super().forward(x), len(x) > 4


@pattern("std")
class MinibatchStddev(Net):
    def mix(self, h):
        std = h.std(0, unbiased=False).mean()
        return h + std.expand(h.size(0), 1)


@pattern("batch")
class MinibatchDiscrimination(Net):
    def mix(self, h):
        far = (h.unsqueeze(0) - h.unsqueeze(1)).abs().sum(2)
        return h + torch.exp(-far).sum(1, keepdim=True)


@pattern("with one another", labelled)
class TripletsOfTheBatch(Net):
    def forward(self, x, y):
        h = self.first(x)
        far = torch.cdist(h, h)
        same = y.unsqueeze(0) == y.unsqueeze(1)
        hardest = (far * same).max(1).values
        nearest = far.masked_fill(same, 1e9).min(1).values
        return F.relu(hardest - nearest.clamp(max=10) + 0.3)


@pattern("batch")
class SortsTheBatch(Net):
    def mix(self, h):
        return h.sort(0).values


@pattern("batch")
class AddsUpTheBatch(Net):
    def mix(self, h):
        return h.cumsum(0)


@pattern("batch")
class TopOfTheBatch(Net):
    def mix(self, h):
        return h - h.topk(2, 0).values.sum(0)


@pattern("batch")
class ArgmaxOfTheBatch(Net):
    def mix(self, h):
        return h + h.argmax(0).to(h)


@pattern("NumPy")
class NumpyDetour(Net):
    def mix(self, h):
        return h - torch.from_numpy(h.detach().numpy().mean(0))


PATTERNS["NumpyDetour"] = PATTERNS["NumpyDetour"]._replace(expected="numpy()")


@pattern("tolist")
class ListDetour(Net):
    def mix(self, h):
        return h - max(h[:, 0].tolist())


@pattern("max")
class ItemDetour(Net):
    def mix(self, h):
        return h - h.sum(1).max().item()


@pattern("over the samples")
class EinsumOverTheBatch(Net):
    def mix(self, h):
        return h + torch.einsum("bi,bj->ij", h, h).diagonal()


@pattern("divided")
class EinsumWithinSamples(Net):
    def mix(self, h):
        return h + torch.einsum("bi,bj,ij->bi", h, h, self.first.weight)


@pattern("samples")
class DistancesBetweenSamples(Net):
    def mix(self, h):
        return h + torch.cdist(h, h).min(1).values.unsqueeze(1)


@pattern("divided", lambda step: (rows(step, 5, 3),))
class FarthestPointSampling(nn.Module):
    """PointNet++, as it is written in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(3, 4)

    def forward(self, xyz):
        b, n, _ = xyz.shape
        centroids = torch.zeros(b, 2, dtype=torch.long)
        distance = torch.ones(b, n) * 1e10
        farthest = torch.zeros(b, dtype=torch.long)
        batch_indices = torch.arange(b, dtype=torch.long)
        for i in range(2):
            centroids[:, i] = farthest
            centroid = xyz[batch_indices, farthest, :].view(b, 1, 3)
            far = torch.sum((xyz - centroid) ** 2, -1)
            distance = torch.min(distance, far)
            farthest = torch.max(distance, -1)[1]
        view_shape = [b] + [1] * (centroids.dim() - 1)
        repeat_shape = [1, *list(centroids.shape[1:])]
        indices = torch.arange(b).view(view_shape).repeat(repeat_shape)
        return self.mlp(xyz[indices, centroids, :]).max(1)[0]


PATTERNS["FarthestPointSampling"] = PATTERNS["FarthestPointSampling"]._replace(expected="either")


@pattern("either")
class FarthestPointSamplingFromRandomStart(FarthestPointSampling):
    def forward(self, xyz):
        b, n, _ = xyz.shape
        farthest = torch.randint(0, n, (b,), dtype=torch.long)
        return self.mlp(xyz[torch.arange(b), farthest])


PATTERNS["FarthestPointSamplingFromRandomStart"] = PATTERNS[
    "FarthestPointSamplingFromRandomStart"
]._replace(batch=lambda step: (rows(step, 5, 3),), expected="divided")


@pattern("divided", labelled)
class PicksItsLabel(Net):
    def forward(self, x, y):
        scores = super().forward(x)
        return scores[torch.arange(len(x)), y], scores.gather(1, y.unsqueeze(1))


@pattern("divided", labelled)
class ArcFace(Net):
    def forward(self, x, y):
        cosine = F.linear(F.normalize(self.first(x)), F.normalize(self.last.weight))
        phi = torch.cos(torch.acos(cosine.clamp(-0.99, 0.99)) + 0.2)
        hot = torch.zeros_like(cosine).scatter_(1, y.view(-1, 1), 1.0)
        return 8 * (hot * phi + (1 - hot) * cosine)


@pattern("divided", labelled)
class LossWithClassWeightsOfEachSample(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("class_weight", torch.rand(3))

    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y, self.class_weight, reduction="none")


@pattern("divided", labelled)
class LossInside(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)


def as_many_classes_as_samples(_step):
    return rows(0), whole_numbers(0, 8), torch.linspace(0.5, 2, 8)


@pattern("either", as_many_classes_as_samples)
class AsManyClassWeightsAsSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x, y, class_weight):
        return F.cross_entropy(self.out(x), y, class_weight, reduction="none")


@pattern("either", lambda step: (rows(0, 8),))
class AsManyFeaturesAsSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x * self.weight) + self.weight.expand(8, 8)


@pattern("either", lambda step: (rows(0, 8),))
class TransposesASquareBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x) + x.t()


PATTERNS["TransposesASquareBatch"] = PATTERNS["TransposesASquareBatch"]._replace(expected="either")


@pattern("divided", lambda step: (rows(step, 1),))
class SqueezesItsOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, x):
        return self.out(x).squeeze()


PATTERNS["SqueezesShardsOfOneSample"] = PATTERNS["SqueezesItsOutput"]._replace(
    batch=lambda step: (rows(step, 1)[: 3 if step % 2 else 8],)
)


# -- state


@pattern("self.calls")
class CountsCalls(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def mix(self, h):
        self.calls += 1
        return h


@pattern("divided")
class CountsCallsInABuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def mix(self, h):
        self.calls += 1
        return h * self.calls


@pattern("calls")
class CountsCallsInATensor(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = torch.zeros(())

    def mix(self, h):
        self.calls += 1
        return h


@pattern("calls")
class CountsCallsInAnArray(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = np.zeros(1)

    def mix(self, h):
        self.calls[0] += 1
        return h


@pattern("calls")
class CountsCallsInADict(Net):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"deep": [{"calls": 0}]}

    def mix(self, h):
        self.state["deep"][0]["calls"] += 1
        return h


@pattern("count")
def counts_calls_in_a_closure():
    count = 0

    def counted(h):
        nonlocal count
        count += 1
        return h * count

    model = Net()
    model.mix = counted
    return model


@pattern("changes")
class CountsCallsInADefault(Net):
    def __init__(self) -> None:
        super().__init__()

        def counted(h, seen=[0]):  # noqa: B006
            seen[0] += 1
            return h * seen[0]

        self.counted = counted

    def mix(self, h):
        return self.counted(h)


@pattern("MEANS", reset=lambda: DefaultOfAMethod.mix.__defaults__[0].clear())
class DefaultOfAMethod(Net):
    def mix(self, h, seen=[]):  # noqa: B006
        seen.append(h.shape[1])
        return h * len(seen)


PATTERNS["DefaultOfAMethod"] = PATTERNS["DefaultOfAMethod"]._replace(expected="defaults")


class Slots:
    __slots__ = ("calls", "inner")

    def __init__(self) -> None:
        self.calls = 0
        self.inner = [0]


@pattern("calls")
class CountsCallsInSlots(Net):
    def __init__(self) -> None:
        super().__init__()
        self.state = Slots()

    def mix(self, h):
        self.state.calls += 1
        return h


class GlobalState:
    calls = 0


def no_calls():
    GlobalState.calls = 0
    globals()["CALLS"] = 0


CALLS = 0


@pattern("CALLS", reset=no_calls)
class CountsCallsInAGlobal(Net):
    def mix(self, h):
        global CALLS
        CALLS += 1
        return h * min(CALLS, 10)


@pattern("calls", reset=no_calls)
class CountsCallsInAClass(Net):
    def mix(self, h):
        GlobalState.calls += 1
        return h * min(GlobalState.calls, 10)


SCALE: ContextVar[float] = ContextVar("SCALE", default=1.0)
AUXILIARY: ContextVar[list[float]] = ContextVar("AUXILIARY")
BY_THREAD = threading.local()


def no_context():
    SCALE.set(1.0)
    AUXILIARY.set([])
    BY_THREAD.__dict__.clear()


def scale_in_context(_model, step):
    SCALE.set(2.0 if step % 10 > 4 else 0.5)


@pattern("divided", between=scale_in_context, reset=no_context)
class ReadsAContextVariable(Net):
    def mix(self, h):
        return h * SCALE.get()


@pattern("divided", between=scale_in_context, reset=no_context)
class ReadsAContextVariableOfAModule(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = SCALE

    def mix(self, h):
        return h * self.scale.get()


@pattern("context variable SCALE", reset=no_context)
class CountsInAContextVariable(Net):
    def mix(self, h):
        SCALE.set(SCALE.get() * 1.01)
        return h * SCALE.get()


@pattern("divided", reset=no_context)
class SetsAContextVariableForAWhile(Net):
    def mix(self, h):
        token = SCALE.set(3.0)
        try:
            return h * SCALE.get()
        finally:
            SCALE.reset(token)


@pattern("AUXILIARY", reset=no_context)
class AuxiliaryLossesInContext(Net):
    def mix(self, h):
        AUXILIARY.get().append(float(h.detach().square().mean()))
        return h


def scale_in_thread(_model, step):
    BY_THREAD.scale = 2.0 if step < 10 else 0.5


@pattern("threading.local", between=scale_in_thread, reset=no_context)
class ReadsAThreadsOwn(Net):
    def mix(self, h):
        return h * getattr(BY_THREAD, "scale", 1.0)


@pattern("threading.local", between=scale_in_thread, reset=no_context)
class HoldsAThreadsOwn(Net):
    def __init__(self) -> None:
        super().__init__()
        self.own = BY_THREAD

    def mix(self, h):
        return h * getattr(self.own, "scale", 1.0)


@pattern("iterator")
class CountsCallsByIterator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.count = itertools.count()

    def mix(self, h):
        return h * 2 if next(self.count) > 10 else h


def coins():
    generator = random.Random(3)
    while True:
        yield generator.random()


@pattern("iterator")
class DrawsFromAPythonGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.coins = coins()

    def mix(self, h):
        return h * next(self.coins)


@pattern("history")
class ListThatGrows(Net):
    def __init__(self) -> None:
        super().__init__()
        self.history = collections.deque(maxlen=5)

    def mix(self, h):
        self.history.append(h.shape[-1])
        return h


@pattern("cache")
class CacheByShape(Net):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def mix(self, h):
        if h.shape not in self.cache:
            self.cache[h.shape] = torch.ones(h.shape) * 1.5
        return h * self.cache[h.shape]


@pattern("self.most")
class RunningMaximum(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(WIDTH))

    def mix(self, h):
        self.most = torch.maximum(self.most, h.detach().abs().amax(0))
        return h / (self.most + 1e-3)


def slower(model, step):
    if step == 10:
        model.decay.fill_(0.9)


@pattern("divided", between=slower)
class BufferThatIsWrittenButTheSameAtFirst(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("decay", torch.ones(()))

    def mix(self, h):
        self.scale.mul_(self.decay)
        return h * self.scale


@pattern("running_mean")
class BatchNormInAClosure(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH, affine=False)
        self.norm = lambda h: self.bn(h)

    def mix(self, h):
        return self.norm(h)


class Holder:
    def __init__(self, module):
        self.module = module


@pattern("running_mean")
class BatchNormInAnObject(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH, affine=False)
        self.holder = Holder(self.bn)

    def mix(self, h):
        return self.holder.module(h)


@pattern("shares memory")
class BuffersThatShareMemory(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(WIDTH))
        self.register_buffer("head", self.table[:2])

    def mix(self, h):
        self.head.mul_(1.1)
        return h * self.table


@pattern("x")
class EmbeddingUpdatedInForward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, max_norm=0.5)

    def forward(self, x, ids):
        return super().forward(x + self.table(ids))


PATTERNS["EmbeddingUpdatedInForward"] = PATTERNS["EmbeddingUpdatedInForward"]._replace(
    batch=lambda step: (rows(step), whole_numbers(step, 10)), expected="table.weight"
)


@pattern("divided", lambda step: (whole_numbers(step, 10),))
class SparseEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3, sparse=True)

    def forward(self, ids):
        return self.table(ids)


@pattern("divided")
class LazyLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))

    def forward(self, x):
        return self.net(x)


PATTERNS["LazyLayers"] = PATTERNS["LazyLayers"]._replace(expected="either")


@pattern("either")
class LayerMadeInForward(Net):
    def forward(self, x):
        if not hasattr(self, "extra"):
            self.extra = nn.Linear(WIDTH, WIDTH)
        return super().forward(self.extra(x))


class Mixes(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def replace_module(model, step):
    if step == 10:
        model.middle = Mixes()


@pattern("mean", between=replace_module)
class ModuleReplaced(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Identity()

    def mix(self, h):
        return self.middle(h)


def replace_function(model, step):
    # functions that are freed leave their addresses to others
    model.function = (lambda h: h - h.mean(0)) if step > 9 else (lambda h: h * 1.0)


@pattern("either", between=replace_function)
class FunctionReplacedInEachStep(Net):
    def mix(self, h):
        return self.function(h)


def replace_forward(model, step):
    if "forward" in model.__dict__:
        del model.forward
    if step % 4 == 1:
        factor = step
        model.forward = types.MethodType(
            (lambda self, x: type(self).forward(self, x) * 1.0)
            if step < 9
            else (lambda self, x: type(self).forward(self, x - x.mean(0)) * factor),
            model,
        )


@pattern("either", between=replace_forward)
class ForwardPatchedOnTheInstance(Net):
    pass


def mixing_forward(self, x):
    return Net.forward(self, x - x.mean(0))


def patch_class(model, step):
    if step == 10:
        type(model).forward = mixing_forward


def unpatch_class():
    vars(ForwardPatchedOnTheClass).get("forward") and delattr(ForwardPatchedOnTheClass, "forward")


@pattern("mean", between=patch_class, reset=unpatch_class)
class ForwardPatchedOnTheClass(Net):
    pass


def class_flag(model, step):
    type(model).mixes = step >= 10


@pattern("mean", between=class_flag, reset=lambda: setattr(FlagOfTheClass, "mixes", False))
class FlagOfTheClass(Net):
    mixes = False

    def mix(self, h):
        return h - h.mean(0) if self.mixes else h


def becomes_another_class(model, step):
    if step == 10:
        model.middle.__class__ = Mixes


@pattern("mean", between=becomes_another_class)
class ModuleOfAnotherClass(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Identity()

    def mix(self, h):
        return self.middle(h)


def set_flag(model, step):
    model.mixes = step >= 10


@pattern("mean", between=set_flag)
class FlagOfTheInstance(Net):
    def mix(self, h):
        return h - h.mean(0) if self.mixes else h


def set_deep_flag(model, step):
    model.config["a"]["b"]["c"]["d"]["e"]["f"] = [step >= 10]


@pattern("mean", between=set_deep_flag)
class FlagDeepInADict(Net):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"a": {"b": {"c": {"d": {"e": {"f": [False]}}}}}}

    def mix(self, h):
        return h - h.mean(0) if self.config["a"]["b"]["c"]["d"]["e"]["f"][0] else h


def deep_tensor():
    model = Net()
    model.config = {"a": {"b": {"c": {"d": {"e": {"f": torch.ones(2)}}}}}}
    return model


pattern("divided")(deep_tensor)


def set_in_a_set(model, step):
    if step == 10:
        model.options.add("mix")


@pattern("mean", between=set_in_a_set)
class FlagInASet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.options = {"none"}

    def mix(self, h):
        return h - h.mean(0) if "mix" in self.options else h


def set_in_slots(model, step):
    if step == 10:
        model.state.calls = 1


@pattern("mean", between=set_in_slots)
class FlagInSlots(Net):
    def __init__(self) -> None:
        super().__init__()
        self.state = Slots()

    def mix(self, h):
        return h - h.mean(0) if self.state.calls else h


def anneal(model, step):
    model.temperature = 1.0 + step * 0.1


@pattern("either", between=anneal)
class NumberThatChangesInEachStep(Net):
    def mix(self, h):
        return h * self.temperature


# -- training loops


def two_optimizers(call, model, arguments, optimizers, _step):
    first, second = optimizers
    real = call(arguments[0], head=0)
    first.zero_grad()
    loss = real[0].square().mean()
    loss.backward()
    first.step()
    fake = call(arguments[0] * 0.5, head=1)
    second.zero_grad()
    other = fake[0].square().mean() + fake[0].mean()
    other.backward()
    second.step()
    return [loss, other]


@pattern("divided", step=two_optimizers)
class GanWithTwoOptimizers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, 2)

    def forward(self, x, head=0):
        h = torch.tanh(self.first(x))
        return ((self.last, self.other)[head](h),)

    def optimizers(self):
        return (
            torch.optim.SGD([*self.first.parameters(), *self.last.parameters()], lr=0.1),
            torch.optim.SGD(self.other.parameters(), lr=0.1),
        )


class TwoHeads(Net):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h), self.value(h).squeeze(-1)


def two_backwards(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    policy, value = call(*arguments)
    one, other = policy.square().mean(), (value - 1).square().mean()
    one.backward(retain_graph=True)
    other.backward()
    optimizer.step()
    return [one, other]


def separate_backwards(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    policy, value = call(*arguments)
    (policy.square().mean() + (value - 1).square().mean()).backward(retain_graph=True)
    first = [p.grad.clone() for group in optimizer.param_groups for p in group["params"]]
    value.sum().backward()
    optimizer.step()
    return [policy, value, *first]


pattern("divided", step=two_backwards, name="PPO")(TwoHeads)
pattern("divided", step=separate_backwards, name="PPOWithRetainedGraph")(TwoHeads)


def accumulates(call, _model, arguments, optimizer, step):
    if step % 2 == 0:
        optimizer.zero_grad()
    out = call(*arguments).square().mean() / 2
    out.backward()
    if step % 2:
        optimizer.step()
    return [out]


pattern("divided", step=accumulates, name="AccumulatesGradients")(Net)


def siamese(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    one, other = call(arguments[0]), call(arguments[0].flip(1))
    loss = F.cosine_similarity(one, other).mean()
    loss.backward()
    optimizer.step()
    return [loss]


pattern("divided", step=siamese, name="Siamese")(Net)


def evaluates(call, model, arguments, optimizer, step):
    call.train()
    optimizer.zero_grad()
    loss = call(*arguments).square().mean()
    loss.backward()
    optimizer.step()
    call.eval()
    with torch.no_grad() if step % 2 else torch.inference_mode():
        out = call(*arguments)
    return [loss, out.clone()]


@pattern("divided", step=evaluates)
class TrainsAndEvaluates(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH)

    def mix(self, h):
        return F.dropout(self.bn(h), 0.2, self.training)


def swa(call, model, arguments, optimizer, step):
    optimizer.zero_grad()
    loss = call(*arguments).square().mean()
    loss.backward()
    optimizer.step()
    if not hasattr(optimizer, "averaged"):
        optimizer.averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer.averaged.update_parameters(model)
    return [loss, optimizer.averaged(arguments[0])]


pattern("divided", step=swa, name="StochasticWeightAveraging")(Net)


def in_place_on_outputs(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    out = call(*arguments)
    out *= 2
    out[0] += 1
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    return [loss]


pattern("divided", step=in_place_on_outputs, name="OutputsChangedInPlace")(Net)


def second_is_changed(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    outputs = list(tensors_in(call(*arguments)))
    with torch.no_grad():
        outputs[1] += 1
    loss = sum((one.square().mean() for one in outputs if one.requires_grad), torch.zeros(()))
    loss.backward()
    optimizer.step()
    return [loss, *outputs]


@pattern("divided", step=second_is_changed)
class SameOutputTwice(Net):
    def forward(self, x):
        y = super().forward(x)
        return y, y, {"again": y}


@pattern("divided", step=second_is_changed)
class OutputAndItsDetached(Net):
    def forward(self, x):
        y = super().forward(x)
        return y, y.detach()


@pattern("divided", step=second_is_changed)
class DetachedOutputFirst(Net):
    def forward(self, x):
        y = super().forward(x)
        return y.detach(), y, y.view(-1, 3)


@pattern("share memory", step=second_is_changed)
class OutputAndAColumnOfIt(Net):
    def forward(self, x):
        y = super().forward(x)
        return y, y[:, :1]


@pattern("divided", step=second_is_changed)
class OutputsOfOneProjection(Net):
    def forward(self, x):
        y = super().forward(x)
        both = torch.cat([y, y * 2], 1)
        return both[:, ::2], both[:, 1::2]


def view_of_a_transposed_output(call, _model, arguments, optimizer, _step):
    optimizer.zero_grad()
    hidden, image = call(*arguments)
    rows_of_steps = hidden.transpose(0, 1).view(-1, hidden.shape[-1])
    pixels = image.permute(0, 2, 3, 1).view(-1, image.shape[1])
    loss = rows_of_steps.cos().mean() + pixels.square().mean()
    loss.backward()
    optimizer.step()
    return [loss]


@pattern("divided", sequences, step=view_of_a_transposed_output)
class TransposedOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 4, batch_first=True)
        self.conv = nn.Conv2d(1, 3, 2).to(memory_format=torch.channels_last)

    def forward(self, x):
        image = self.conv(x[:, None].contiguous(memory_format=torch.channels_last))
        return self.lstm(x)[0], image.contiguous(memory_format=torch.channels_last)


# -- arguments and outputs


@pattern("argument", lambda step: (whole_numbers(step, 5, 3), rows(step)))
class IntegersChangedInPlace(Net):
    def forward(self, ids, x):
        ids += 1
        return super().forward(x) * ids


@pattern("argument")
class FloatsChangedInPlace(Net):
    def forward(self, x):
        x += 1
        x.mul_(0.5)
        return super().forward(x)


@pattern("argument", lambda step: (rows(step, 6),))
class FirstLayerInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))

    def forward(self, x):
        return self.net(x)


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)


@pattern("no tensor", lambda step: (Batch(rows(step)),))
class DataclassAsArgument(Net):
    def forward(self, batch):
        return super().forward(batch.x) * batch.scale


@dataclass
class Options:
    mixes: bool = False


@pattern("mean", lambda step: (rows(step), Options(mixes=step >= 10)))
class OptionsAsArgument(Net):
    def forward(self, x, options):
        return super().forward(x - x.mean(0) if options.mixes else x)


OPTIONS = Options()


def same_options(step):
    OPTIONS.mixes = step >= 10
    return rows(step), OPTIONS


@pattern("mean", same_options)
class SameOptionsAsArgument(OptionsAsArgument):
    pass


@pattern("divided", lambda step: ({"x": rows(step), "y": [rows(step, seed=1), (3, "a")]},))
class DictAsArgument(Net):
    def forward(self, batch):
        return super().forward(batch["x"] + batch["y"][0] * batch["y"][1][0])


@pattern("argument", lambda step: ({"x": rows(step)},))
class DictAsArgumentThatIsChanged(Net):
    def forward(self, batch):
        batch["h"] = torch.tanh(self.first(batch["x"]))
        return self.last(batch["h"])


@pattern("mean", lambda step: {"args": features(step), "kwargs": {"mixes": step >= 10}})
class FlagAsArgument(Net):
    def forward(self, x, *, mixes):
        return super().forward(x - x.mean(0) if mixes else x)


def longer(step):
    return (rows(step, 9 if step >= 10 else 5, WIDTH),)


@pattern("batch", longer)
class MixesLongSequences(Net):
    def mix(self, h):
        return h - h.mean(0) if h.size(1) > 7 else h


PATTERNS["MixesLongSequences"] = PATTERNS["MixesLongSequences"]._replace(expected="mean")


@dataclass
class Output:
    logits: torch.Tensor
    loss: Any = None


@pattern("divided")
class DataclassAsOutput(Net):
    def forward(self, x):
        return Output(super().forward(x))


class Mapping(dict):
    """As those of transformers are, unknown to pytree."""


@pattern("number")
class MappingAsOutput(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x), Mapping(scale=self.scale.exp())


class Named(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor
    nothing: None
    number: int


@pattern("divided")
class NamedTupleAsOutput(Net):
    def forward(self, x):
        h = self.first(x)
        return Named(self.last(h), h, None, 3)


@pattern("either")
class DictAsOutput(Net):
    def forward(self, x):
        h = self.first(x)
        return {"out": self.last(h), "all": [h, {"name": "h"}], "scale": self.first.weight.norm()}


@pattern("is an argument")
class ReturnsItsInputAndAParameter(Net):
    def forward(self, x):
        return x, super().forward(x), self.first.weight


@pattern("batch")
class SelectedRowsAsOutput(Net):
    def forward(self, x):
        out = super().forward(x)
        return out[out[:, 0] > 0]


@pattern("divided")
class MaskOfRowsAsOutput(Net):
    def forward(self, x):
        out = super().forward(x)
        return out, out[:, 0] > 0, out.masked_fill(out < 0, 0.0)


@pattern("divided")
class MasksInPlace(Net):
    def mix(self, h):
        h = h * 1
        h[h < 0] = 0
        return h


@pattern("batch")
class SortsByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 4, batch_first=True)

    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(x[order], lengths, batch_first=True)
        out, _ = self.rnn(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded[order.argsort()]


def with_lengths(step):
    lengths = whole_numbers(step, 5) + 1
    lengths[0] = 5
    return rows(step, 5, WIDTH), lengths


PATTERNS["SortsByLength"] = PATTERNS["SortsByLength"]._replace(batch=with_lengths)


@pattern("sort", with_lengths)
class PackedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.rnn(packed)[1][0]


@pattern("divided", with_lengths)
class MasksByLength(Net):
    def forward(self, x, lengths):
        mask = torch.arange(x.size(1))[None] < lengths[:, None]
        return (super().forward(x) * mask.unsqueeze(2)).sum(1) / lengths.unsqueeze(1)


@pattern("either", sequences)
class NestedTensors(Net):
    def forward(self, x):
        nested = torch.nested.nested_tensor([one[: 2 + n % 3] for n, one in enumerate(x)])
        return super().forward(torch.nested.to_padded_tensor(nested, 0.0))


# -- linear algebra of each sample


def factor(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes numbers of a symmetric matrix by a function of torch.linalg."""

    def numbers(h: torch.Tensor) -> torch.Tensor:
        found = getattr(torch.linalg, name)(h)
        parts = found if isinstance(found, tuple) else (found,)
        return sum(part.abs().reshape(len(h), -1).sum(1) for part in parts)

    return numbers


class OfCovariances(Net):
    """Numbers of a positive definite matrix for each sample."""

    function = ""

    def mix(self, h):
        outer = h.unsqueeze(2) * h.unsqueeze(1) + torch.diag(torch.arange(1.0, WIDTH + 1)).to(h)
        return h * factor(self.function)(outer).unsqueeze(1) / 100


for one in ("eigh", "eigvalsh", "cholesky", "inv", "det", "slogdet", "qr", "svdvals", "matrix_exp"):
    pattern("divided", name=f"OfCovariances_{one}")(
        type(f"OfCovariances_{one}", (OfCovariances,), {"function": one})
    )


# -- layouts


@pattern("divided", lambda step: (rows(step, 5).mul(0.1).unsqueeze(1).expand(-1, WIDTH, 5).mT,))
class TransposedAndExpandedInput(Net):
    pass


@pattern("divided", lambda step: (rows(step, 5, WIDTH).transpose(0, 1),))
class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(WIDTH, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


@pattern("divided", lambda step: (rows(step, 5, WIDTH).transpose(0, 1).contiguous(),))
class SequenceFirstReshaped(Net):
    def forward(self, x):
        t, b, c = x.shape
        return super().forward(x.reshape(t * b, c)).view(t, b, -1)


PATTERNS["SequenceFirstReshaped"] = PATTERNS["SequenceFirstReshaped"]._replace(expected="either")


@pattern("divided", sequences)
class TimeAsBatch(Net):
    def forward(self, x):
        b, t, c = x.shape
        return super().forward(x.view(b * t, c)).view(b, t, -1).mean(1)


@pattern("either", sequences)
class TimeAsBatchWithBatchNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        h = self.bn(x.transpose(0, 1).reshape(t * b, c))
        return super().forward(h).view(t, b, -1).transpose(0, 1)


@pattern("cuts", sequences)
class TimeAndBatchConfused(Net):
    def forward(self, x):
        b, t, c = x.shape
        return super().forward(x.reshape(t, b, c)).reshape(b, t, -1)


@pattern("either", images)
class GroupedConvolutionOfTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 1, 3, 3))

    def forward(self, x):
        b, c, h, w = x.shape
        out = F.conv2d(
            x.view(1, b * c, h, w), self.weight.repeat(b, 1, 1, 1), groups=b * c, padding=1
        )
        return out.view(b, c, h, w)


@pattern("divided")
class Hypernetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(WIDTH, WIDTH * 3)

    def forward(self, x):
        weight = self.make(x).view(-1, WIDTH, 3)
        return torch.bmm(x.unsqueeze(1), weight).squeeze(1)


@pattern("either", images)
class HypernetworkOfConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(4, 2 * 4 * 9)

    def forward(self, x):
        b, c, h, w = x.shape
        weight = self.make(x.mean((2, 3))).view(b * 2, c, 3, 3)
        return F.conv2d(x.reshape(1, b * c, h, w), weight, groups=b).view(b, 2, h - 2, w - 2)


@pattern("divided", lambda step: (whole_numbers(step, 10, 4),))
class BagsOfTwoDimensions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 3, mode="mean")

    def forward(self, ids):
        return self.table(ids)


@pattern("either", lambda step: (whole_numbers(0, 10, 3).flatten(), torch.arange(8) * 3))
class BagsWithOffsets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 3, mode="sum")

    def forward(self, ids, offsets):
        return self.table(ids, offsets)


def graph(step):
    edges = whole_numbers(step, samples(step), 2, seed=3).t().contiguous()
    return rows(step), edges


@pattern("either", graph)
class GraphConvolution(Net):
    def forward(self, x, edges):
        h = self.first(x)
        out = torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])
        return self.last(out)


@pattern("batch", lambda step: (rows(step), torch.arange(samples(step)) // 2))
class GraphPooling(Net):
    def forward(self, x, batch):
        h = self.first(x)
        count = int(batch.max()) + 1
        return self.last(torch.zeros(count, WIDTH).scatter_add_(0, batch[:, None].expand_as(h), h))


PATTERNS["GraphPooling"] = PATTERNS["GraphPooling"]._replace(expected="max")


@pattern("divided", lambda step: (rows(step, WIDTH, 2),))
class ComplexNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, dtype=torch.cdouble))

    def forward(self, x):
        z = torch.view_as_complex(x) * self.weight
        return z, torch.fft.ifft(torch.fft.fft(z)).real


@pattern("divided", lambda step: (rows(step).float(),), rtol=2e-2)
class AutocastInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, 3)).float()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x).float()


def autocast_step(call, _model, arguments, optimizer, step):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=step % 3 > 0):
        out = call(*arguments)
    loss = out.float().square().mean()
    loss.backward()
    optimizer.step()
    return [loss]


pattern("divided", lambda step: (rows(step).float(),), step=autocast_step, rtol=2e-2,
        name="AutocastOutside")(lambda: Net().float())  # fmt: skip


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()

    def forward(self, x):
        return self.net(x)


pattern("divided", lambda step: (rows(step).bfloat16(),), rtol=5e-2, name="Bfloat16")(Half)


@pattern("divided")
class CheckpointNotReentrant(Net):
    def mix(self, h):
        return checkpoint.checkpoint(lambda h: F.dropout(h.sin(), 0.2), h, use_reentrant=False)


@pattern("backward")
class CheckpointReentrant(Net):
    def mix(self, h):
        return checkpoint.checkpoint(torch.sin, h, use_reentrant=True)


@pattern("divided", sequences)
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dropout=0.1)

    def forward(self, x):
        return self.attention(x, x, x)[0]


@pattern("divided", sequences)
class AttentionOverTheBatch(nn.Module):
    """Sequences come first to it; a batch that does is another axis than its author meant."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x):
        return self.attention(x, x, x)[0]


PATTERNS["AttentionOverTheBatch"] = PATTERNS["AttentionOverTheBatch"]._replace(expected="either")


@pattern("batch")
class SearchesInTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.weight + torch.bucketize(x.detach(), x.detach().sort().values)


PATTERNS["SearchesInTheBatch"] = PATTERNS["SearchesInTheBatch"]._replace(
    batch=lambda step: (rows(step)[:, 0].sort().values.contiguous(),), expected="batch"
)


@pattern("either")
class CatchesEverything(Net):
    def mix(self, h):
        try:
            return h - h.mean(0)
        except BaseException:
            return h


@pattern("either")
class CompilesItsGraph(Net):
    def __init__(self) -> None:
        super().__init__()
        self.options = partial(torch.clamp, min=-0.5, max=0.5)

    def mix(self, h):
        return self.options(h)


PATTERNS["PartialInAttribute"] = PATTERNS.pop("CompilesItsGraph")._replace(expected="divided")


# -- training and comparison


class Run(NamedTuple):
    """What a training gives that a script could look at."""

    losses: list[float]
    values: list[Any]
    """Outputs of each step, and inputs after it."""
    states: list[dict[str, Any]]
    """All that can be reached from the model, after the first step and the last."""
    numbers: tuple[Any, ...]
    """The states of the generators."""


def loss_of(output: Any) -> torch.Tensor:
    """Add up what makes each element of each output count differently."""
    total = torch.zeros(())
    for leaf in tensors_in(output):
        if leaf.requires_grad:
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            weights = torch.sin(torch.arange(real.numel(), dtype=torch.float64))
            each = real.double() * weights.view(real.shape)
            total = total + each.mean() + real.double().square().mean()
    return total


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        yield from tensors_in(vars(value))
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def train(name: str, wrap: Callable[[nn.Module], Any], steps: int = STEPS) -> tuple[Run, Any]:
    """Train a model as `wrap` returns it."""
    given = PATTERNS[name]
    given.reset()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = given.make()
    call = wrap(model)
    if hasattr(model, "optimizers"):
        optimizer = model.optimizers()
    elif name == "LazyLayers":
        optimizer = None
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, values, states = [], [], []
    for step in range(steps):
        given.between(model, step)
        batch = given.batch(step)
        arguments = batch["args"] if isinstance(batch, dict) else batch
        options = batch["kwargs"] if isinstance(batch, dict) else {}
        if given.step is not None:
            outputs = given.step(call, model, arguments, optimizer, step)
            losses += [float(one.detach().double().sum()) for one in tensors_in(outputs)]
        else:
            outputs = call(*arguments, **options)
            if optimizer is None:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer.zero_grad()
            loss = loss_of(outputs)
            if loss.requires_grad:
                loss.backward()
                optimizer.step()
            losses.append(float(loss))
        values.append(
            {**flat(list(tensors_in(outputs)), grads=False), **flat(("inputs", arguments))}
        )
        if step in (0, steps - 1):
            states.append(flat(model))
    numbers = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    in_context = SCALE.get(), list(AUXILIARY.get([]))
    globals_ = (list(LOSSES), CALLS, GlobalState.calls, DefaultOfAMethod.mix.__defaults__)
    globals_ = (*globals_, *in_context)
    states.append(flat(globals_))
    given.reset()
    return Run(losses, values, states, numbers), call


def flat(value: Any, *, grads: bool = True) -> dict[str, Any]:
    """Return copies of all values that can be reached, by where they are."""
    found: dict[str, Any] = {}
    _flatten(value, "" if grads else "outputs", found, set())
    return {key: one for key, one in found.items() if grads or not key.endswith(".grad")}


def _flatten(value: Any, where: str, found: dict[str, Any], seen: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        found[where] = value.detach().to_dense().clone()
        found[f"{where} (type)"] = value.dtype, value.requires_grad
        grad = value.grad if value.is_leaf else None
        found[f"{where}.grad"] = None if grad is None else grad.to_dense().clone()
        return
    if isinstance(value, int | float | str | bool | complex | None | type):
        found[where] = value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    found[f"{where} (type)"] = type(value).__qualname__
    if isinstance(value, np.ndarray):
        found[where] = torch.from_numpy(value.copy())
    elif isinstance(value, torch.Generator):
        found[where] = value.get_state()
    elif isinstance(value, random.Random):
        found[where] = value.getstate()
    elif isinstance(value, np.random.Generator):
        found[where] = str(value.bit_generator.state)
    elif isinstance(value, types.GeneratorType):
        _flatten(dict(value.gi_frame.f_locals), where, found, seen)
    elif isinstance(value, itertools.count):
        found[where] = repr(value)
    elif isinstance(value, dict):
        for number, (key, one) in enumerate(value.items()):
            _flatten(one, f"{where}[{key if isinstance(key, str) else number}]", found, seen)
    elif isinstance(value, list | tuple | collections.deque):
        for number, one in enumerate(value):
            _flatten(one, f"{where}[{number}]", found, seen)
    elif isinstance(value, set | frozenset):
        found[where] = sorted(map(str, value))
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            _flatten(cell.cell_contents, f"{where} ()", found, seen)
        _flatten(value.__defaults__, f"{where} (defaults)", found, seen)
    elif isinstance(value, types.MethodType):
        _flatten(value.__func__, where, found, seen)
    held = dict(getattr(value, "__dict__", {}))
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    held.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    for key in sorted(held):
        if key not in ("_flat_weight_refs", "__dict__", "__weakref__", "_metadata"):
            _flatten(held[key], f"{where}.{key}", found, seen)


def differences(one: Any, other: Any, rtol: float) -> list[str]:
    """Return where two runs differ."""
    found: list[str] = []
    for step, (a, b) in enumerate(zip(one.losses, other.losses, strict=True)):
        if not math.isclose(a, b, rel_tol=rtol, abs_tol=rtol):
            found.append(f"loss {step}: {a!r} and {b!r}")
            break
    parts = (("step", one.values, other.values), ("state", one.states, other.states))
    for what, left, right in parts:
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            if a.keys() != b.keys():
                found.append(f"{what} {number}: {sorted(a.keys() ^ b.keys())}")
            for key in a.keys() & b.keys():
                if not _alike(a[key], b[key], rtol):
                    found.append(f"{what} {number}: {key}: {a[key]} and {b[key]}")
    if not torch.equal(one.numbers[0], other.numbers[0]):
        found.append("torch's random numbers")
    if one.numbers[1] != other.numbers[1]:
        found.append("Python's random numbers")
    if str(one.numbers[2]) != str(other.numbers[2]):
        found.append("NumPy's random numbers")
    return found


def _alike(one: Any, other: Any, rtol: float) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and (one == other or one != one)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=rtol, atol=rtol, equal_nan=True)


def main(names: list[str]) -> None:
    """Print the losses of plain scripts, each a fork of this process with torch loaded."""
    torch.set_default_dtype(torch.float64)
    for name in names:
        child = os.fork()
        if not child:
            losses = train(name, lambda model: model)[0].losses
            print(name, *map(repr, losses), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, name


if __name__ == "__main__":
    main(sys.argv[1:])
