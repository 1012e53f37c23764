"""The gradients of a linear layer, computed with the cross entropy of its output, are torch's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build
from cputrain.runtime import cross_entropy, linear_cross_entropy
from cputrain.runtime.cross_entropy import CrossEntropies

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

NUM_CLASSES = 31


@contextmanager
def kernels(rows: int = 4) -> Iterator[CrossEntropies]:
    """Patch torch, and have kernels compute layers of any size, some rows at a time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(cross_entropy, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(cross_entropy, "MIN_CLASSES", 1)
        monkeypatch.setattr(cross_entropy, "MIN_LINEAR_ELEMENTS", 1)
        monkeypatch.setattr(linear_cross_entropy, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(linear_cross_entropy, "MIN_ROWS", rows)
        monkeypatch.setattr(linear_cross_entropy, "CHUNK_ELEMENTS", 1)
        patch = CrossEntropies()
        patch.remember_calls()
        assert patch.load() is not None
        try:
            yield patch
        finally:
            patch.undo()


class Layer(NamedTuple):
    """A layer, what comes before it, and targets."""

    embedding: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor

    def hidden(self) -> Tensor:
        return (self.embedding * 2).sin()

    def logits(self) -> Tensor:
        return F.linear(self.hidden(), self.weight, self.bias)

    def loss(self, logits: Tensor, **options: Any) -> Tensor:
        flat = logits.view(-1, NUM_CLASSES)
        return F.cross_entropy(flat, self.targets.view(-1), **options)

    def leaves(self) -> list[Tensor]:
        """What has a gradient in the end."""
        tensors = (self.embedding, self.weight, self.bias)
        return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]

    def grads(self) -> list[Tensor]:
        return [leaf.grad for leaf in self.leaves() if leaf.grad is not None]


LAYERS = {
    "batch": {}, "rows": {"shape": (11,)}, "bias": {"has_bias": True},
    "frozen": {"is_frozen": True}, "frozen, bias": {"is_frozen": True, "has_bias": True},
    "ignored": {"ignored": 0.7},
}  # fmt: skip


def layer_of(
    shape: tuple[int, ...] = (3, 5),
    *,
    has_bias: bool = False,
    is_frozen: bool = False,
    ignored: float = 0.2,
) -> Layer:
    draws = torch.Generator().manual_seed(0)
    targets = torch.randint(NUM_CLASSES, shape, generator=draws)
    targets[torch.rand(shape, generator=draws) < ignored] = -100
    embedding = torch.randn(*shape, 7, generator=draws).requires_grad_()
    weight = torch.randn(NUM_CLASSES, 7, generator=draws).requires_grad_(not is_frozen)
    bias = torch.randn(NUM_CLASSES, generator=draws).requires_grad_() if has_bias else None
    return Layer(embedding, weight, bias, targets)


def trained(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits())
    loss.backward()
    return [loss, *layer.grads()]


def summed(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits(), reduction="sum") / 7
    loss.backward()
    return [loss, *layer.grads()]


def accumulated(layer: Layer) -> list[Tensor]:
    for part in (4, 8, 1):
        (layer.loss(layer.logits()) / part).backward()
    return layer.grads()


def logits_kept(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    loss = layer.loss(logits)
    loss.backward()
    return [loss, logits, *layer.grads()]


def logits_changed_behind_the_loss(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    loss = layer.loss(logits)
    with torch.no_grad():
        logits[..., 3] = 50
    loss.backward()
    return [loss, *layer.grads()]


def data_of_logits_changed(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    loss = layer.loss(logits)
    logits.data.zero_()
    loss.backward()
    return [loss, *layer.grads()]


def two_uses(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    (layer.loss(logits) + logits.logsumexp(-1).square().mean()).backward()
    return layer.grads()


def factor(layer: Layer) -> list[Tensor]:
    layer.loss(layer.logits()).backward(torch.tensor(0.3))
    return layer.grads()


def tied(layer: Layer) -> list[Tensor]:
    rows = F.embedding(layer.targets.clamp(min=0), layer.weight)
    loss = layer.loss(F.linear(layer.hidden() + rows, layer.weight))
    loss.backward()
    return [loss, *layer.grads()]


def source_of_hidden_changed(layer: Layer) -> list[Tensor]:
    """Hidden values are written to where this has no effect on the gradients of torch."""
    hidden = layer.hidden()
    logits = F.linear(hidden * 1, layer.weight, layer.bias)
    loss = layer.loss(logits)
    with torch.no_grad():
        hidden.zero_()
    loss.backward()
    return [loss, *layer.grads()]


def by_module(layer: Layer) -> list[Tensor]:
    """By a module, through a view and a flattening."""
    module = nn.Linear(7, NUM_CLASSES, bias=layer.bias is not None)
    module.weight, module.bias = nn.Parameter(layer.weight.detach()), None
    module.weight.requires_grad_(layer.weight.requires_grad)
    logits = module(layer.hidden()).unsqueeze(0).flatten(0, -2)
    loss = nn.CrossEntropyLoss()(logits, layer.targets.flatten())
    loss.backward()
    return [loss, *layer.grads()]


BY_CHUNKS: list[Callable[[Layer], list[Tensor]]] = [
    trained, summed, accumulated, logits_kept, logits_changed_behind_the_loss,
    data_of_logits_changed, two_uses, factor, tied,
]  # fmt: skip


def hooked_before(layer: Layer) -> list[Tensor]:
    seen: list[Tensor] = []
    logits = layer.logits()
    logits.register_hook(lambda grad: seen.append(grad.clone()))
    layer.loss(logits).backward()
    return [*seen, *layer.grads()]


def hooked_behind(layer: Layer) -> list[Tensor]:
    seen: list[Tensor] = []
    logits = layer.logits()
    loss = layer.loss(logits)
    logits.register_hook(lambda grad: seen.append(grad.clone()))
    loss.backward()
    assert len(seen) == 1
    return [*seen, *layer.grads()]


def retained(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    logits.retain_grad()
    layer.loss(logits).backward()
    assert logits.grad is not None
    return [logits.grad, *layer.grads()]


def grad_of_logits(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    return list(torch.autograd.grad(layer.loss(logits), (logits, layer.embedding)))


def grad_of_leaves(layer: Layer) -> list[Tensor]:
    return list(torch.autograd.grad(layer.loss(layer.logits()), layer.leaves()))


def backward_to_inputs(layer: Layer) -> list[Tensor]:
    layer.loss(layer.logits()).backward(inputs=[layer.embedding])
    return layer.grads()


def twice(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits())
    loss.backward(retain_graph=True)
    loss.backward()
    return layer.grads()


def without_a_graph_left(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits())
    loss.backward()
    loss.backward()
    return []


def penalty(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits())
    (grad,) = torch.autograd.grad(loss, layer.embedding, create_graph=True)
    (loss + grad.square().sum()).backward()
    return layer.grads()


def infinite_factor(layer: Layer) -> list[Tensor]:
    layer.loss(layer.logits()).backward(torch.tensor(float("inf")))
    return layer.grads()


def targets_changed(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits())
    layer.targets.zero_()
    loss.backward()
    return []


def hidden_changed(layer: Layer) -> list[Tensor]:
    hidden = layer.hidden()
    logits = F.linear(hidden, layer.weight, layer.bias)
    hidden.mul_(3)
    loss = layer.loss(logits)
    loss.backward()
    return [loss, *layer.grads()]


def logits_scaled(layer: Layer) -> list[Tensor]:
    loss = layer.loss(layer.logits().div_(2))
    loss.backward()
    return [loss, *layer.grads()]


def logits_written_unseen(layer: Layer) -> list[Tensor]:
    logits = layer.logits()
    with torch.no_grad():
        logits[..., 0] = -20
    loss = layer.loss(logits)
    loss.backward()
    return [loss, *layer.grads()]


def shifted(layer: Layer) -> list[Tensor]:
    logits = layer.logits()[..., :-1, :]
    loss = F.cross_entropy(logits.reshape(-1, NUM_CLASSES), layer.targets[..., 1:].flatten())
    loss.backward()
    return [loss, *layer.grads()]


def wrong_target(layer: Layer) -> list[Tensor]:
    layer.targets.view(-1)[0] = NUM_CLASSES
    return [layer.loss(layer.logits())]


def checkpointed(layer: Layer) -> list[Tensor]:
    def head(hidden: Tensor) -> Tensor:
        return layer.loss(F.linear(hidden, layer.weight, layer.bias))

    loss: Tensor = checkpoint(head, layer.hidden(), use_reentrant=False)
    loss.backward()
    return [loss, *layer.grads()]


def by_function(layer: Layer) -> list[Tensor]:
    def head(weight: Tensor) -> Tensor:
        return layer.loss(F.linear(layer.hidden(), weight))

    return [torch.func.grad(head)(layer.weight.detach())]


def without_a_graph(layer: Layer) -> list[Tensor]:
    with torch.no_grad():
        return [layer.loss(layer.logits())]


def behind_a_loss_without_backward(layer: Layer) -> list[Tensor]:
    """The first loss has no backward."""
    layer.loss(layer.logits())
    return trained(layer)


OTHERS: list[Callable[[Layer], list[Tensor]]] = [
    hooked_before, hooked_behind, retained, grad_of_logits, grad_of_leaves, backward_to_inputs,
    twice, without_a_graph_left, penalty, infinite_factor, targets_changed, hidden_changed,
    logits_scaled, logits_written_unseen, shifted, wrong_target, checkpointed, by_function,
    without_a_graph, behind_a_loss_without_backward, by_module, source_of_hidden_changed,
]  # fmt: skip


def outcome(function: Callable[[Layer], list[Tensor]], layer: Layer) -> tuple[str, list[Tensor]]:
    try:
        return "", [tensor.detach().clone() for tensor in function(layer)]
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}", []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("function", BY_CHUNKS + OTHERS)
def test_a_script_cannot_tell(
    function: Callable[[Layer], list[Tensor]], name: str, rows: int
) -> None:
    problem, expected = outcome(function, layer_of(**LAYERS[name]))
    computed: list[Tensor] = []
    with kernels(rows), pytest.MonkeyPatch.context() as monkeypatch:
        original = cross_entropy.compute
        monkeypatch.setattr(
            cross_entropy, "compute", lambda *a, **k: computed.append(a[1]) or original(*a, **k)
        )
        assert outcome(function, layer_of(**LAYERS[name]))[0] == problem
        results = outcome(function, layer_of(**LAYERS[name]))[1]
    if function in BY_CHUNKS:
        assert computed
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_as_near_to_float64_as_torchs(name: str) -> None:
    exact = layer_of(**LAYERS[name])
    exact = Layer(*(
        tensor if tensor is None or not tensor.is_floating_point()
        else tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in exact
    ))  # fmt: skip
    wanted = trained(exact)
    plain = trained(layer_of(**LAYERS[name]))
    with kernels():
        chunked = trained(layer_of(**LAYERS[name]))
    for tensor, by_torch, by_chunks in zip(wanted, plain, chunked, strict=True):
        floor = 1e-7 * tensor.abs().max()
        assert (by_chunks - tensor).abs().max() <= 2 * (by_torch - tensor).abs().max() + floor


def test_a_loss_without_backward_is_followed_by_one_without_gradients() -> None:
    computed = 0

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal computed
        computed += 1
        return original(*args, **kwargs)

    original = cross_entropy.compute
    layer = layer_of()
    with kernels(), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(cross_entropy, "compute", count)
        for _ in range(5):  # an evaluation without torch.no_grad
            layer.loss(layer.logits())
        assert computed == 1
        for _ in range(3):
            trained(layer)
        assert computed == 3


def test_what_is_computed_is_freed() -> None:
    with kernels():
        for name in LAYERS:
            layer = layer_of(**LAYERS[name])
            hidden = layer.hidden()
            logits = F.linear(hidden, layer.weight, layer.bias)
            loss = layer.loss(logits)
            ends = [weakref.ref(tensor) for tensor in (hidden, logits, loss)]
            del hidden, logits, loss
            gc.collect()
            assert [end() for end in ends] == [None] * 3


def test_the_graph_is_torchs() -> None:
    layer = layer_of()
    expected = layer.loss(layer.logits()).grad_fn
    with kernels():
        node = layer.loss(layer.logits()).grad_fn
    assert type(node).__name__ == type(expected).__name__


@pytest.mark.parametrize("num_classes", [1000, 70_000])
def test_the_gradients_of_large_layers_are_computed_with_the_loss(
    monkeypatch: pytest.MonkeyPatch, num_classes: int
) -> None:
    computed: list[int] = []
    original = cross_entropy.compute
    monkeypatch.setattr(
        cross_entropy, "compute", lambda *a, **k: computed.append(1) or original(*a, **k)
    )
    patch = CrossEntropies()
    try:
        weight = torch.randn(num_classes, 2, requires_grad=True)
        logits = F.linear(torch.randn(128, 2, requires_grad=True), weight)
        F.cross_entropy(logits, torch.arange(128)).backward()
    finally:
        patch.undo()
    assert bool(computed) == (num_classes == 70_000)
