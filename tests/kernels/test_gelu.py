"""Transformers' GELU, in chunks, has the effects of the composed function."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.runtime import gelu as runtime
from cputrain.runtime.gelu import ChunkedGelus


@pytest.fixture(scope="module")
def activations() -> ModuleType:
    return pytest.importorskip("transformers.activations")


@contextmanager
def chunked(activations: ModuleType, chunk_elements: int = 4) -> Iterator[ChunkedGelus]:
    patch = ChunkedGelus()
    patch.patch(activations)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runtime, "CHUNK_ELEMENTS", chunk_elements)
        try:
            yield patch
        finally:
            patch.undo()


def values(*shape: int) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return (torch.randn(*shape, generator=draws) * 3).requires_grad_()


Gelu = Callable[[Tensor], Tensor]


def trained(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    output = gelu(data * 1)
    return [output, *torch.autograd.grad(output.sin().sum(), data)]


def transposed(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    output = gelu(data.t())
    return [output, *torch.autograd.grad(output.sin().sum(), data)]


def second_derivative(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    (grad,) = torch.autograd.grad(gelu(data).sin().sum(), data, create_graph=True)
    return [grad, *torch.autograd.grad(grad.square().sum(), data)]


def input_changed(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    middle = data * 1
    output = gelu(middle)
    middle.zero_()
    return [*torch.autograd.grad(output.sum(), data)]


def output_changed(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    output = gelu(data)
    output.mul_(2)
    return [output, *torch.autograd.grad(output.sum(), data)]


def of_double(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7).detach().double().requires_grad_()
    output = gelu(data)
    return [output, *torch.autograd.grad(output.sin().sum(), data)]


def without_gradients(gelu: Gelu) -> list[Tensor]:
    with torch.no_grad():
        return [gelu(values(5, 7)), gelu(values(0, 3)), gelu(torch.tensor(2.0))]


IN_CHUNKS = [trained, second_derivative, input_changed, output_changed, of_double,
            without_gradients]  # fmt: skip


def of_bfloat16(gelu: Gelu) -> list[Tensor]:
    return [gelu(values(5, 7).bfloat16())]


def hooked(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        output = gelu(data)
    return [torch.tensor(len(packed)), *torch.autograd.grad(output.sum(), data)]


def checkpointed(gelu: Gelu) -> list[Tensor]:
    data = values(5, 7)
    output = checkpoint(gelu, data * 1, use_reentrant=False)
    return [output, *torch.autograd.grad(output.sum(), data)]


def mapped(gelu: Gelu) -> list[Tensor]:
    return [torch.vmap(gelu)(values(5, 7)), torch.func.grad(lambda x: gelu(x).sum())(values(3))]


def compiled(gelu: Gelu) -> list[Tensor]:
    return [torch.compile(gelu, backend="aot_eager", fullgraph=True)(values(5, 7))]


def traced(gelu: Gelu) -> list[Tensor]:
    trace = torch.jit.trace(gelu, values(5, 7))
    return [trace(values(4, 7)), torch.tensor(str(trace.graph).count("aten::tanh"))]


def wrong(gelu: Any) -> list[Tensor]:
    return [gelu("text")]


COMPOSED = [transposed, of_bfloat16, hooked, mapped, compiled, traced, wrong]


def outcome(function: Callable[[Gelu], list[Tensor]], gelu: Gelu) -> tuple[str, list[Tensor]]:
    try:
        return "", [tensor.detach().clone() for tensor in function(gelu)]
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}".partition("modified by")[0], []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "function", [*IN_CHUNKS, *COMPOSED, checkpointed], ids=lambda f: f.__name__
)
def test_a_script_cannot_tell(
    function: Callable[[Gelu], list[Tensor]], activations: ModuleType
) -> None:
    error, expected = outcome(function, activations.NewGELUActivation())
    with chunked(activations) as patch:
        result_error, results = outcome(function, activations.NewGELUActivation())
        # (a trace is compared with a call, which is in chunks)
        assert bool(patch.num_computed) == (function in {*IN_CHUNKS, traced})
    assert result_error == error
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype is wanted.dtype
        assert result.stride() == wanted.stride()
        if function is second_derivative:  # its terms are added up in another order
            torch.testing.assert_close(result, wanted)
        else:
            assert torch.equal(result, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_elements", [1, 7, 16, 33, 1000, 4097, 300_001])
def test_no_bit_differs(dtype: torch.dtype, num_elements: int, activations: ModuleType) -> None:
    gelu = activations.NewGELUActivation()

    def trained_once() -> list[Tensor]:
        draws = torch.Generator().manual_seed(num_elements)
        data, grad = torch.randn(2, num_elements, generator=draws, dtype=dtype)
        data.mul_(3).requires_grad_()
        output = gelu(data)
        return [output, *torch.autograd.grad(output, data, grad)]

    expected = trained_once()
    with chunked(activations, 1000) as patch:
        results = trained_once()
        assert patch.num_computed
    assert all(map(torch.equal, results, expected))


def test_models_are_copied_pickled_and_printed_as_before(activations: ModuleType) -> None:
    model = nn.Sequential(nn.Linear(3, 3), activations.NewGELUActivation())
    expected = repr(model)
    node = repr(model(torch.ones(3))).partition("grad_fn")[2]
    forward = activations.NewGELUActivation.forward
    with chunked(activations):
        assert repr(pickle.loads(pickle.dumps(copy.deepcopy(model)))) == expected
        assert repr(model(torch.ones(3))).partition("grad_fn")[2] == node
        assert activations.NewGELUActivation.forward.__name__ == "forward"
    assert activations.NewGELUActivation.forward is forward


def test_a_version_without_the_composed_function_is_left_alone() -> None:
    patch = ChunkedGelus()
    patch.patch(ModuleType("activations"))
    patch.undo()
