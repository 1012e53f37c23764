"""Random numbers of a divided batch are those of the whole, whichever function draws them."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)
from torch import nn

from cputrain import Split
from cputrain.split.execution.context import ReplicaContext, current_replica
from cputrain.split.sync import random_functions
from cputrain.split.sync.barrier import ReplicaBarrier
from cputrain.split.sync.rng import SharedDraws


class Draws(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.function = function

    def forward(self, x):
        return self.function(x) + 0 * x * self.weight.sum()


def heads(x):
    return x.reshape(len(x), 2, 3, -1)


CASES = {
    "rand": lambda x: torch.rand(len(x), 6),
    "rand of a size": lambda x: torch.rand(size=(len(x), 6)),
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype),
    "randint": lambda x: torch.randint(3, 9, x.shape),
    "randint of a size": lambda x: torch.randint(9, size=tuple(x.shape)),
    "normal": lambda x: torch.normal(2.0, 3.0, x.shape),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 7),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli of a number": lambda x: x.bernoulli(0.3),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(torch.sigmoid(x)),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1),
    "normal_": lambda x: x.detach().clone().normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "random_": lambda x: torch.empty_like(x).random_(0, 9),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "torch.dropout": lambda x: torch.dropout(x, 0.4, train=True),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout of everything": lambda x: F.dropout(x, 1.0),
    "dropout of a transposed tensor": lambda x: F.dropout(x.t().contiguous().t(), 0.4),
    "dropout2d": lambda x: F.dropout2d(heads(x)).reshape(len(x), -1),
    "dropout1d": lambda x: F.dropout1d(x.reshape(len(x), 3, 2)).reshape(len(x), -1),
    "channels last": lambda x: F.dropout(
        heads(x).to(memory_format=torch.channels_last)
    ).reshape(len(x), -1),
    "attention": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), dropout_p=0.3
    ).reshape(len(x), -1),
    "attention to the past": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), dropout_p=0.3, is_causal=True
    ).reshape(len(x), -1),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), torch.tensor([True, False, True]), 0.3, scale=0.5
    ).reshape(len(x), -1),
    "one number for all": lambda x: x * (torch.rand(1) < 0.5) + torch.rand(()),
    "several, one after the other": lambda x: torch.rand_like(x) + F.dropout(x) * torch.rand(6),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [13, 5])
def test_they_are_the_same(case, size):
    model = Draws(CASES[case])
    split = Split(model, replicas=3)
    x = torch.randn(size, 6)
    for seed in range(3):
        torch.manual_seed(seed)
        whole, after = model(x), torch.rand(1)
        torch.manual_seed(seed)
        torch.testing.assert_close(whole, split(x), atol=1e-6, rtol=1e-6)
        assert torch.equal(after, torch.rand(1))
    assert split.calls_divided == 3


def test_a_generator_of_the_scripts_own_is_not_ours_to_divide():
    generator = torch.Generator()
    split = Split(Draws(lambda x: torch.rand(x.shape, generator=generator)), replicas=2)
    with pytest.warns(UserWarning, match="in a way that cannot be divided"):
        split(torch.randn(8, 6))


def test_a_function_that_was_taken_before_we_came_is_told():
    own = getattr(torch.rand_like, "__wrapped__", torch.rand_like)
    split = Split(Draws(lambda x: own(x)), replicas=2)
    with pytest.warns(UserWarning, match="in a way that cannot be divided"):
        split(torch.randn(8, 6))


def test_elsewhere_they_are_torchs_own():
    Split(Draws(torch.rand_like), replicas=2)(torch.randn(8, 6))
    torch.manual_seed(1)
    one = torch.rand(3), F.dropout(torch.ones(5)), torch.empty(2).normal_()
    torch.manual_seed(1)
    other = torch.rand(size=(3,)), torch.dropout(torch.ones(5), 0.5, True), torch.randn(2)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)
    assert torch.rand.__name__ == "rand"


def test_a_forward_that_draws_more_often_than_it_did_says_so():
    times = [1]
    split = Split(Draws(lambda x: sum(torch.rand_like(x) for _ in range(times[0]))), replicas=2)
    x = torch.randn(8, 6)
    split(x)
    times[0] = 2
    with pytest.raises(RuntimeError, match="as many random numbers in every forward; found draw 2"):
        split(x)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_fused_dropout_scales_what_it_keeps_as_torch_does(monkeypatch, kind):
    """Each number is rounded once, and the scale is not: so do GPUs, which have such a kernel."""
    monkeypatch.setattr(random_functions, "FUSED", ("cpu",))

    def drops(x):
        if current_replica() is None:
            kept = torch.native_dropout(torch.ones_like(x, dtype=kind), 0.3, True)[1]
            return (x.to(kind).float() * kept * (1 / 0.7)).to(kind)
        return F.dropout(x.to(kind), 0.3)

    x = torch.randn(64, 6)
    split = Split(Draws(drops), replicas=2)
    split(x)
    torch.manual_seed(1)
    whole = drops(x)
    torch.manual_seed(1)
    assert torch.equal(split(x).detach().to(kind), whole)
    assert split.calls_divided == 2


def test_the_state_of_a_devices_generator_is_the_parts_own():
    """A checkpoint keeps it, and others draw from that generator meanwhile."""

    def twice(x):
        state = torch.cuda.get_rng_state("cuda") if current_replica() is not None else None
        first = torch.rand_like(x)
        if state is None:
            return first
        torch.cuda.set_rng_state(state, device="cuda")
        return (first + torch.rand_like(x)) / 2

    x = torch.randn(8, 6)
    split = Split(Draws(twice), replicas=2)
    torch.manual_seed(1)
    whole = twice(x)
    torch.manual_seed(1)
    assert torch.equal(split(x), whole)
    assert split.calls_divided == 1


def test_a_draw_of_parts_that_are_all_elsewhere_is_made_in_one_place_whoever_comes_first():
    """The model is on neither of them: `torch.rand(n)` is on the CPU, for both."""
    home, cpu, other = torch.device("meta", 0), torch.device("cpu"), torch.device("meta", 1)
    found = []
    for first in (0, 1):
        barrier, draws = ReplicaBarrier(2), SharedDraws(2)
        draws.home = home
        parts = [
            ReplicaContext(number, (number, number + 1 + number), 3, barrier, draws, device=device)
            for number, device in enumerate((cpu, other))
        ]
        asked = [
            threading.Thread(
                target=lambda part=part, draws=draws: found.append(
                    draws._sharding_of(
                        0, part, torch.Size([part.end - part.begin]), (0,), cpu
                    ).device
                )
            )
            for part in (parts[first], parts[1 - first])
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
    assert found == [cpu] * 4
