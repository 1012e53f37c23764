"""What overrides torch's functions is told of them by the names that scripts know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from cputrain.runtime.c_kernels import CKernels


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # a Split in an earlier file has replaced the function
    attend = torch._C._nn.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    kernels = CKernels()
    try:
        yield
    finally:
        kernels.undo()


CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "batch_norm": (
        lambda: torch.batch_norm,
        lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    ),
    "relu": (lambda: torch.relu, lambda x: torch.relu(x)),
    "relu_": (lambda: torch.relu_, lambda x: torch.relu_(x)),
    "dropout": (lambda: torch.dropout, lambda x: torch.dropout(x, 0.1, True)),
    "dropout_": (lambda: torch.dropout_, lambda x: torch.dropout_(x, 0.1, True)),
    "conv1d": (
        lambda: torch.conv1d,
        lambda x: torch.conv1d(x[:, :, 0], torch.ones(4, 1, 1), groups=4),
    ),
    "conv2d": (lambda: torch.conv2d, lambda x: torch.conv2d(x, torch.ones(4, 1, 1, 1), groups=4)),
    "F.conv2d": (
        lambda: F.conv2d,
        lambda x: F.conv2d(x, torch.ones(4, 1, 1, 1), None, 1, 0, 1, 4),
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention,
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    ),
    "attention without dropout": (
        lambda: torch._C._nn.scaled_dot_product_attention,
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ),
    "cross_entropy_loss": (
        lambda: torch._C._nn.cross_entropy_loss,
        lambda x: torch._C._nn.cross_entropy_loss(
            x[0, 0], torch.zeros(5).long(), None, 1, -100, 0.0
        ),
    ),
}
"""Functions by their names at the time of a call, and calls of them with images."""


class Quantized(Tensor):
    """A subclass that knows functions by their names."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", CALLS)
def test_a_subclass_knows_the_function(name: str) -> None:
    function, call = CALLS[name]
    Quantized.seen.clear()
    result = call(torch.rand(2, 4, 5, 5).as_subclass(Quantized))
    assert function() in Quantized.seen
    assert type(result) is Quantized


@pytest.mark.parametrize("name", CALLS)
def test_a_mode_knows_the_function_and_the_result_is_the_same(name: str) -> None:
    function, call = CALLS[name]
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    results = []
    for _ in range(2):
        torch.manual_seed(0)
        x = torch.rand(2, 4, 5, 5)
        with Mode():
            results.append(call(x))
        torch.manual_seed(0)
        results.append(call(torch.rand(2, 4, 5, 5)))
    assert function() in seen
    assert all(torch.equal(result, results[0]) for result in results)


def test_an_object_that_is_no_tensor_may_override() -> None:
    class Lazy:
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func

    assert torch.conv2d(Lazy(), Lazy(), groups=2) is torch.conv2d  # type: ignore[call-overload]
    assert F.scaled_dot_product_attention(
        Lazy(), Lazy(), Lazy(), dropout_p=0.5  # type: ignore[arg-type]
    ) is F.scaled_dot_product_attention  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_attention_of_nested_tensors_is_theirs() -> None:
    torch.manual_seed(0)
    parts = [torch.rand(length, 2, 8) for length in (3, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    found = F.scaled_dot_product_attention(nested, nested, nested)
    for part, one in zip(parts, found.transpose(1, 2).unbind(), strict=True):
        alone = part.transpose(0, 1)
        expected = F.scaled_dot_product_attention(alone, alone, alone).transpose(0, 1)
        assert torch.allclose(one, expected, 1e-5, 1e-6)


def test_a_traced_graph_has_the_functions() -> None:
    network = nn.Sequential(
        nn.Conv2d(4, 4, 5, groups=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout()
    )

    class Attends(nn.Module):
        def forward(self, x: Tensor, rate: float) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=rate)

    graph = fx.symbolic_trace(network, concrete_args={})
    x = torch.rand(2, 4, 9, 9)
    torch.manual_seed(0)
    expected = network(x)
    torch.manual_seed(0)
    assert torch.equal(graph(x), expected)
    graph = fx.symbolic_trace(Attends())
    assert "torch.nn.functional.scaled_dot_product_attention(" in graph.code.replace(
        "torch._C._nn", "torch.nn.functional"
    )
    assert torch.equal(graph(x, 0.0), F.scaled_dot_product_attention(x, x, x))
