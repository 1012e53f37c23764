"""The ways in which models are called."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cputrain import Split

pytestmark = pytest.mark.usefixtures("exactly")


class Many(nn.Module):
    """Takes and returns what a model may."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.seen: list[str] = []

    def forward(self, x, extra, *, scale, mode="plain", bias=None):
        hidden = self.inside(x) * scale["by"]
        if bias is not None:
            hidden = hidden + bias
        if mode == "doubled":
            hidden = hidden * 2
        return {
            "hidden": hidden,
            "both": (hidden + extra[0], [extra[1] * 2]),
            "mode": mode,
            "classes": hidden.argmax(-1),
            "weight": self.inside.weight,
        }


def pair(model, **options):
    return model, Split(copy.deepcopy(model), **{"replicas": 3, **options})


def test_nested_arguments_and_outputs():
    whole, split = pair(Many())
    x, extra = torch.randn(7, 4), (torch.randn(7, 4), torch.randn(7, 2))
    scale, bias = {"by": torch.randn(7, 1)}, torch.randn(4)
    one = whole(x, extra, scale=scale, mode="doubled", bias=bias)
    other = split(x, extra, scale=scale, mode="doubled", bias=bias)
    assert split.calls_divided == 1
    assert other["mode"] == "doubled"
    assert torch.equal(one["classes"], other["classes"])
    assert torch.equal(one["weight"], other["weight"])
    for a, b in ((one["hidden"], other["hidden"]), (one["both"][0], other["both"][0]),
                 (one["both"][1][0], other["both"][1][0])):  # fmt: skip
        torch.testing.assert_close(a, b)
    for output in (one, other):
        (output["both"][0].sum() + output["weight"].square().sum()).backward()
    torch.testing.assert_close(whole.inside.weight.grad, split.inside.weight.grad)


def test_inputs_have_their_gradients_too():
    """What is divided, and what goes to all: a bias here."""
    whole, split = pair(Many())
    x = torch.randn(7, 4, requires_grad=True)
    bias = torch.randn(4, requires_grad=True)
    extra, scale = (torch.randn(7, 4), torch.randn(7, 2)), {"by": torch.randn(7, 1)}
    gradients = []
    for model in (whole, split):
        out = model(x, extra, scale=scale, bias=bias)["hidden"]
        gradients.append(torch.autograd.grad(out.square().sum(), (x, bias)))
    assert split.calls_divided == 1
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_a_batch_in_the_second_dimension_of_some_arguments():
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(9, 4) for _ in range(3))
            self.out = nn.Linear(4, 1)

        def forward(self, numbers, categories):
            found = [table(ids) for table, ids in zip(self.tables, categories, strict=True)]
            return self.out(numbers + sum(found)).squeeze(1)

    whole, split = pair(Tables())
    numbers, categories = torch.randn(8, 4), torch.randint(9, (3, 8, 2))
    torch.testing.assert_close(whole(numbers, categories), split(numbers, categories))
    assert split.calls_divided == 1


def test_short_batches_and_batches_smaller_than_replicas():
    whole, split = pair(nn.Linear(4, 2), replicas=4)
    for size in (9, 3, 2, 1, 0, 9):
        x = torch.randn(size, 4)
        torch.testing.assert_close(whole(x), split(x))
    assert split.calls_divided == 4


def test_gradients_accumulate_and_several_forwards_precede_a_backward():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    whole, split = pair(model)
    batches = [torch.randn(size, 4) for size in (6, 9, 5)]
    for one in (whole, split):
        first, second = one(batches[0]), one(batches[1])
        (first.sum() * 3 + second.square().sum()).backward()
        one(batches[2]).square().sum().backward()
    assert split.calls_divided == 3
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_graph_that_is_kept_can_be_gone_back_through_again():
    whole, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4)
    for model in (whole, split):
        out = model(x).sum()
        out.backward(retain_graph=True)
        out.backward()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


class Heads(nn.Module):
    """Two networks, of which each has an output."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.other = nn.Linear(4, 3)

    def forward(self, x):
        return self.one(x), self.other(x)


def test_outputs_may_go_backward_one_after_the_other():
    whole, split = pair(Heads())
    x = torch.randn(6, 4)
    for model in (whole, split):
        one, other = model(x)
        one.square().sum().backward()
        other.square().sum().backward()
    assert split.calls_divided == 1
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_without_gradients_and_in_inference():
    whole, split = pair(nn.Linear(4, 2))
    x = torch.randn(6, 4)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = split(x)
            torch.testing.assert_close(whole(x), out)
            assert not out.requires_grad
    with torch.inference_mode():
        assert split(x).is_inference()
    assert split.calls_divided == 3


def test_evaluation_between_training():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    whole, split = pair(model)
    x = torch.randn(6, 4)
    for training in (True, False, True):
        whole.train(training)
        split.train(training)
        torch.manual_seed(3)
        one = whole(x)
        torch.manual_seed(3)
        torch.testing.assert_close(one, split(x))
    assert split.calls_divided == 3


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.4), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.4), nn.Linear(16, 2))

    def forward(self, x):
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        return checkpoint(self.second, hidden, use_reentrant=self.reentrant)


def test_checkpoints_draw_again_what_they_drew():
    whole, split = pair(Checkpointed(reentrant=False))
    for _ in range(2):
        x = torch.randn(7, 4)
        for model in (whole, split):
            torch.manual_seed(4)
            model(x).square().sum().backward()
    assert split.calls_divided == 2
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_model(reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
    whole, split = pair(model)
    x = torch.randn(6, 4, requires_grad=True)
    for one in (whole, split):
        torch.manual_seed(4)
        checkpoint(one, x, use_reentrant=reentrant).sum().backward()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_saved_tensors_may_be_kept_elsewhere():
    whole, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4)
    for one in (whole, split):
        with torch.autograd.graph.save_on_cpu():
            out = one(x)
        out.sum().backward()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_reentrant_checkpoints_are_left_as_they_are():
    _, split = pair(Checkpointed(reentrant=True))
    with pytest.warns(UserWarning, match="use_reentrant=False"):
        split(torch.randn(7, 4, requires_grad=True)).sum().backward()
    assert split.calls_divided == 0


def test_differentiating_twice_is_refused():
    _, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"differentiated again .* found create_graph=True"):
        torch.autograd.grad(split(x).sum(), x, create_graph=True)


def test_parameters_that_a_call_brings_along():
    whole, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4)
    split(x)
    others = {name: value * 2 for name, value in whole.named_parameters()}
    found = torch.func.functional_call(split, others, (x,))
    torch.testing.assert_close(found, torch.func.functional_call(whole, others, (x,)))
    assert split.calls_divided == 1
    torch.testing.assert_close(split(x), whole(x))
    assert split.calls_divided == 2


def test_frozen_parameters_have_no_gradient_and_may_thaw():
    whole, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4)
    for frozen in (True, False):
        for model in (whole, split):
            model[0].requires_grad_(not frozen)
            model(x).sum().backward()
        for a, b in zip(whole.parameters(), split.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


def test_an_optimizer_sees_one_model():
    whole, split = pair(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    for model in (whole, split):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(5):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_fewer_bits_in_the_caller_are_fewer_bits_in_replicas():
    torch.set_default_dtype(torch.float32)
    whole, split = pair(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    x = torch.randn(12, 64)
    with torch.autocast("cpu", torch.bfloat16):
        one, other = whole(x), split(x)
    assert split.calls_divided == 1
    assert other.dtype == one.dtype == torch.bfloat16
    torch.testing.assert_close(one, other)
    assert split(x).dtype == torch.float32


@pytest.mark.parametrize("wholly", [False, True])
def test_batch_norm_with_fewer_bits(wholly):
    """Within autocast, and in a model that is bf16 itself."""
    torch.set_default_dtype(torch.float32)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    whole, split = pair(model.bfloat16() if wholly else model)
    x = torch.randn(9, 3, 6, 6).to(next(model.parameters()).dtype)
    for one in (whole, split):
        with torch.autocast("cpu", torch.bfloat16, enabled=not wholly):
            out = one(x)
        out.float().square().mean().backward()
    assert split.calls_divided == 1
    assert whole[1].running_mean.dtype == split[1].running_mean.dtype
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert float((a.grad - b.grad).norm()) <= 0.05 * max(float(a.grad.norm()), 0.05)
    torch.testing.assert_close(whole[1].running_var, split[1].running_var, rtol=0.01, atol=0.01)


def test_sparse_gradients():
    whole, split = pair(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten()))
    ids = torch.randint(9, (8, 3))
    for model in (whole, split):
        model(ids).square().sum().backward()
    assert split.calls_divided == 1
    assert split[0].weight.grad.is_sparse
    torch.testing.assert_close(whole[0].weight.grad.to_dense(), split[0].weight.grad.to_dense())


def test_nothing_of_a_batch_is_kept_after_its_backward():
    """Though the loss is, as where losses are added up."""
    split = Split(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), replicas=2)
    split(torch.randn(8, 4)).sum().backward()
    x = torch.randn(8, 4)
    kept = weakref.ref(x)
    loss = split(x).sum()
    loss.backward()
    del x
    gc.collect()
    assert kept() is None
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_layer_that_is_exchanged_in_a_list_is_seen():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.last = [nn.Identity()]

        def forward(self, x):
            return self.last[0](self.layer(x))

    model = Listed()
    split = Split(model, replicas=2)
    x = torch.randn(8, 4)
    split(x)
    model.last[0] = nn.Tanh()
    torch.testing.assert_close(split(x), model(x))
    assert split.calls_divided == 2
