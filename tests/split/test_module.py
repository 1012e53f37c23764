"""A Split stands for its model in everything but the forward."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import cputrain
from cputrain import Split
from cputrain.errors import UsageError


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.register_buffer("scale", torch.ones(1))
        self.classes = ["a", "b"]

    def forward(self, x):
        return self.body(x) * self.scale

    def classify(self, x):
        return self.classes[int(self(x).argmax()) % 2]


def test_its_names_are_the_models():
    model = Named()
    split = Split(model, replicas=2)
    assert list(split.state_dict()) == list(model.state_dict())
    assert [name for name, _ in split.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    assert all(a is b for a, b in zip(split.parameters(), model.parameters(), strict=True))
    assert [name for name, _ in split.named_modules()] == [n for n, _ in model.named_modules()]
    assert split.body is model.body
    assert split.classes is model.classes
    assert split.classify(torch.randn(3, 4)) in "ab"


def test_attributes_are_set_on_the_model():
    model = Named()
    split = Split(model, replicas=2)
    split.classes = ["c"]
    split.head = nn.Linear(8, 2)
    assert model.classes == ["c"]
    assert "head.weight" in split.state_dict()
    assert "head.weight" in model.state_dict()
    del split.head
    assert not hasattr(model, "head")
    with pytest.raises(AttributeError, match="nothing"):
        _ = split.nothing


def test_train_eval_and_to_are_the_models():
    model = Named()
    split = Split(model, replicas=2)
    assert split.training
    assert split.eval() is split
    assert not model.training
    assert not model.body[1].training
    assert not split.training
    assert split.train() is split
    assert split.to(torch.float64) is split
    assert model.body[0].weight.dtype == torch.float64
    assert split(torch.randn(5, 4, dtype=torch.float64)).dtype == torch.float64
    split.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    assert float(model.scale) == 2


def test_what_changes_in_the_model_changes_in_its_replicas():
    model = Named()
    split = Split(model, replicas=2)
    x = torch.randn(6, 4)
    split(x)
    model.body[0] = nn.Linear(4, 8)
    other = copy.deepcopy(model)
    torch.testing.assert_close(split(x), other(x))
    with torch.no_grad():
        model.body[0].weight.data = torch.zeros(8, 4)
        other.body[0].weight.zero_()
    torch.testing.assert_close(split(x), other(x))
    assert split.calls_divided == 3


def test_copies_and_pickles():
    split = Split(Named(), replicas=2)
    x = torch.randn(5, 4)
    split(x)
    for twin in (copy.deepcopy(split), pickle.loads(pickle.dumps(split))):
        assert isinstance(twin, Split)
        assert twin.body is not split.body
        torch.testing.assert_close(twin.eval()(x), copy.deepcopy(split).eval()(x))
        assert twin.calls_divided == 1


def test_a_sequential_is_one_still():
    split = Split(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), replicas=2)
    assert len(split) == 2
    assert isinstance(split[1], nn.ReLU)
    assert [type(one) for one in split] == [nn.Linear, nn.ReLU]
    assert "Linear" in repr(split)


def test_hooks_of_the_split_see_the_whole_batch():
    split = Split(nn.Linear(2, 3), replicas=2)
    seen = []
    split.register_forward_hook(lambda _module, args, out: seen.append((len(args[0]), len(out))))
    split(torch.randn(5, 2))
    assert seen == [(5, 5)]
    assert split.calls_divided == 1


def test_a_compiler_is_given_the_whole_batch():
    model = Named()
    split = Split(model, replicas=2)
    x = torch.randn(6, 4)
    right = model.eval()(x)
    split.compile(backend="eager", fullgraph=False)
    torch.testing.assert_close(split(x), right)
    assert model._compiled_call_impl is None
    twin = torch.compile(Split(model, replicas=2), backend="eager")
    torch.testing.assert_close(twin(x), right)


def test_others_may_be_compiled_beside_it():
    """Functions that know of parts are torch's own to a compiler: one graph, without a break."""
    split = Split(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)), replicas=2)
    x = torch.randn(6, 4)
    split(x)
    other = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.ReLU())
    run = torch.compile(other, backend="aot_eager", fullgraph=True)
    run(x).sum().backward()
    assert other[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torch_jit_reads_models_as_before():
    """What stands in the place of torch's functions has none of their names around it."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.5), nn.Flatten(), nn.Dropout(0.5)
    )
    split = Split(model, replicas=2)
    x = torch.randn(6, 3, 5, 5)
    split(x)
    assert split.calls_divided == 1
    split.eval()
    for made in (torch.jit.script(model), torch.jit.trace(split, x)):
        torch.testing.assert_close(made(x), model(x))
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert torch.jit.script(attention)(torch.randn(2, 3, 8)).shape == (2, 3, 8)


def test_it_is_exported():
    assert cputrain.Split is Split


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"replicas": 0}, "replicas must be"),
        ({"replicas": True}, "replicas must be"),
        ({"replicas": "two"}, "found 'two'"),
        ({"devices": "tpu"}, 'devices must be "auto"'),
        ({"replicas": 2, "shares": (1,)}, "shares must be"),
        ({"replicas": 2, "shares": (1, -1)}, "shares must be"),
        ({"shares": (1, 1)}, "for auto replicas"),
    ],
)
def test_what_cannot_be_is_said(options, names):
    with pytest.raises(UsageError) as error:
        Split(nn.Linear(2, 3), **options)
    assert names in str(error.value)


def test_only_a_module_can_be_split():
    with pytest.raises(UsageError, match=r"torch\.nn\.Module; found int"):
        Split(3)
