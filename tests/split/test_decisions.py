"""Questions about the whole batch, by which a model decides what to compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils import checkpoint

from cputrain import Split

pytestmark = pytest.mark.usefixtures("exactly", "one_thread")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.dropped = nn.Dropout(0.3)

    def forward(self, x, mask):
        return self.last(self.changed(self.dropped(torch.tanh(self.first(x))), mask))


class MaskedWhereItHasTo(Net):
    def changed(self, h, mask):
        return h if mask.all() else h * mask.unsqueeze(1)


class AsksTorch(Net):
    def changed(self, h, mask):
        return h if bool(torch.all(mask)) else h * mask.unsqueeze(1)


class AsksTwice(Net):
    def changed(self, h, mask):
        if mask.all():
            return h
        h = h * 2 if (h > 0.9).any() else h
        return h * mask.unsqueeze(1)


class ReadsTheItem(Net):
    def changed(self, h, mask):
        return h + 1 if (mask == 0).any().item() else h


class Clipped(Net):
    """Decides for all samples by one of them."""

    def changed(self, h, mask):
        return h / 2 if (h.abs() > 0.95).any() else h * mask.unsqueeze(1)


class DecidesByRandomNumbers(Net):
    """Other answers in each step, whatever the batch is."""

    def changed(self, h, mask):
        for _ in range(3):
            h = h / 2 if (torch.rand_like(h) > 0.97).any() else h + mask.unsqueeze(1)
        return h


class AsksBehindACheckpoint(Net):
    def changed(self, h, mask):
        return checkpoint.checkpoint(self.asked, h, mask, use_reentrant=False)

    def asked(self, h, mask):
        return torch.sin(h) if mask.all() else torch.cos(h) * mask.unsqueeze(1)


class AddsTheAnswer(Net):
    """No decision, but a number of the whole batch in a sum."""

    def changed(self, h, mask):
        return h + mask.all()


class Checks(Net):
    """As torch.distributions checks its arguments."""

    def changed(self, h, mask):
        spread = F.softplus(h) + 0.1
        if not (spread > 0).all():
            raise ValueError("no spread")
        return torch.distributions.Normal(h, spread).log_prob(mask.unsqueeze(1).expand_as(h))


class WritesNumbers(Net):
    """A buffer that is written before the question is asked."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def changed(self, h, mask):
        h = self.norm(h)
        return h if mask.all() else h * mask.unsqueeze(1)


KINDS = [
    MaskedWhereItHasTo, AsksTorch, AsksTwice, ReadsTheItem, Clipped, DecidesByRandomNumbers,
    AsksBehindACheckpoint, AddsTheAnswer, Checks, WritesNumbers,
]  # fmt: skip


def masks(step, *shape):
    """Return all ones, then one with a zero in the first part, then in the last."""
    mask = torch.ones(8, *shape)
    if step % 3:
        mask[(step * 5) % 8] = 0
    return mask


def trained(kind, wrap, steps=30):
    torch.manual_seed(1)
    model = kind()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    losses = []
    for step in range(steps):
        x = torch.randn(8, 4, generator=generator)
        loss = wrapped(x, masks(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.named_buffers()), torch.get_rng_state(), wrapped


@pytest.mark.parametrize("kind", KINDS)
def test_all_replicas_decide_by_the_whole_batch(kind):
    right, buffers, numbers, _ = trained(kind, lambda model: model)
    found, others, same, split = trained(kind, lambda model: Split(model, replicas=2))
    assert found == pytest.approx(right, rel=1e-9)
    assert torch.equal(numbers, same)
    for name, buffer in buffers.items():
        assert torch.allclose(buffer, others[name]), name
    assert split.calls_divided == 30, split.why_not


class FailsInACheckpoint(AsksBehindACheckpoint):
    def asked(self, h, mask):
        if (mask < 0).any():
            raise ValueError("planned")
        return h * mask.unsqueeze(1)


def test_no_hook_of_a_checkpoint_is_left_where_it_fails():
    model = FailsInACheckpoint()
    model.dropped.p = 0.0
    split = Split(model, replicas=2)
    x = torch.randn(8, 4, requires_grad=True)
    for step in range(9):
        mask = masks(step)
        right = torch.autograd.grad(model(x, mask).sum(), x)[0]
        assert torch.allclose(torch.autograd.grad(split(x, mask).sum(), x)[0], right)
        if step == 4:
            with pytest.raises(ValueError, match="planned"):
                split(x, mask - 2)
    assert split.calls_divided == 9, split.why_not


@pytest.mark.filterwarnings("ignore:cputrain.Split")
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_models_of_transformers_are_divided_with_and_without_padding(name):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "num_labels": 3}
    config = (
        transformers.BertConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            **sizes,
        )
        if name.startswith("Bert")
        else transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, pad_token_id=0, **sizes)
    )

    def run(wrap):
        torch.manual_seed(1)
        model = getattr(transformers, name)(config).double()
        wrapped, losses = wrap(model), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            mask = torch.ones(8, 7, dtype=torch.long)
            if step % 3 == 1:
                mask[step % 8, 4:] = 0
            ids = torch.randint(1, 30, (8, 7), generator=torch.Generator().manual_seed(step)) * mask
            out = wrapped(input_ids=ids, attention_mask=mask, labels=ids[:, 0] % 3)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            losses.append(out.loss.item())
        return losses, wrapped

    right, _ = run(lambda model: model)
    found, split = run(lambda model: Split(model, replicas=2))
    assert found == pytest.approx(right, rel=1e-6)
    assert split.calls_divided == 12, split.why_not
