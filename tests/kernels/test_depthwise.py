"""Depthwise convolutions by kernels of cputrain have the effects of torch's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build
from cputrain.kernels.depthwise import DepthwiseKernels
from cputrain.runtime import depthwise as runtime
from cputrain.runtime.depthwise import DepthwiseConvolutions

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

INF = math.inf


@contextmanager
def kernels() -> Iterator[DepthwiseConvolutions]:
    """Patch torch, and have kernels compute inputs and filters of any size."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runtime, "MIN_PRODUCTS", 1)
        monkeypatch.setattr(runtime, "MIN_PRODUCTS_OF_THREAD", 1)
        monkeypatch.setattr(runtime, "MIN_FILTER", 1)
        patch = DepthwiseConvolutions()
        assert patch.load() is not None
        try:
            yield patch
        finally:
            patch.undo()


def values(*shape: int, scale: float = 1.0) -> Tensor:
    numbers = torch.arange(math.prod(shape), dtype=torch.float32)
    return (numbers * 0.7).sin().mul_(scale).reshape(shape).requires_grad_()


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None, max_examples=150)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 37), st.integers(1, 21), st.integers(1, 21)),
    st.tuples(st.integers(1, 9), st.integers(1, 19)),
    pairs,
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    pairs,
    st.booleans(),
    st.integers(1, 3),
)
@pytest.mark.long
def test_gradients_are_those_of_float64(
    shape: tuple[int, ...],
    filters: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    is_channels_last: bool,
    threads: int,
) -> None:
    assume(all(
        size + 2 * before >= gap * (rows - 1) + 1
        for size, before, gap, rows in zip(shape[2:], padding, dilation, filters, strict=True)
    ))  # fmt: skip
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    data = values(*shape).detach().contiguous(memory_format=layout).requires_grad_()
    weight, bias = values(shape[1], 1, *filters), values(shape[1])
    options = (stride, padding, dilation, shape[1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exact = [tensor.detach().double().requires_grad_() for tensor in (data, weight, bias)]
        output = F.conv2d(*exact, *options)
        grad = values(*output.shape).detach()
        expected = torch.autograd.grad(output, exact, grad.double())
        with kernels() as patch:
            output = F.conv2d(data, weight, bias, *options)
            found = torch.autograd.grad(output, (data, weight, bias), grad)
            assert patch.num_computed == (shape[1] > 1)
    finally:
        torch.set_num_threads(before)
    if shape[1] == 1:
        return  # which torch has computed, with its own roundings
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.double(), other, 1e-5, 1e-5 * (1 + float(other.abs().max())))


def outcome(function: Callable[[], list[Tensor]]) -> tuple[str, list[Tensor]]:
    try:
        return "", function()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}", []


def module() -> list[Tensor]:
    layer, data = nn.Conv2d(6, 6, 5, padding=2, groups=6), values(3, 6, 9, 11)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(values(*parameter.shape))
    output = layer(data)
    output.sin().sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias is not None
    assert layer.bias.grad is not None
    assert data.grad is not None
    return [output, data.grad, layer.weight.grad, layer.bias.grad]


def gradients(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Of a convolution of these."""
    output = F.conv2d(*args, **kwargs)
    wanted = [
        each
        for each in (*args, *kwargs.values())
        if isinstance(each, Tensor) and each.requires_grad
    ]
    return [output, *torch.autograd.grad(output.sin().sum(), wanted)]


def by_name() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4), padding=2, groups=6)


def without_a_gradient_of_the_input() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11).detach(), values(6, 1, 5, 4), values(6), groups=6)


def of_a_frozen_bias() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4), values(6).detach(), groups=6)


def in_one_dimension() -> list[Tensor]:
    data, weight = values(3, 6, 40), values(6, 1, 15)
    output = F.conv1d(data, weight, None, 2, (7,), 1, 6)
    return [output, *torch.autograd.grad(output.sin().sum(), (data, weight))]


def second_derivative() -> list[Tensor]:
    data, weight = values(2, 6, 9, 11), values(6, 1, 5, 4)
    output = F.conv2d(data, weight, groups=6)
    first = torch.autograd.grad(output.square().sum(), (data, weight), create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), (data, weight))
    return [*(each.detach() for each in first), *second]


def of_infinity() -> list[Tensor]:
    data = values(2, 6, 9, 11).detach()
    data[0, 1, 0, 0] = INF
    data[1, 2, 3, 4] = math.nan
    return gradients(data, values(6, 1, 5, 4), padding=2, groups=6)


def with_hooks_on_saved_tensors() -> list[Tensor]:
    data, weight = values(2, 6, 9, 11), values(6, 1, 5, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
        output = F.conv2d(data, weight, groups=6)
    return [output, *torch.autograd.grad(output.sin().sum(), (data, weight))]


def checkpointed() -> list[Tensor]:
    data, weight = values(2, 6, 9, 11), values(6, 1, 5, 4)
    output = checkpoint(lambda x: F.conv2d(x, weight, groups=6).sin(), data, use_reentrant=False)
    return [output, *torch.autograd.grad(output.sum(), (data, weight))]


def twice() -> list[Tensor]:
    weight = values(6, 1, 5, 4)
    output = F.conv2d(F.conv2d(values(2, 6, 15, 11), weight, groups=6), weight, groups=6)
    return list(torch.autograd.grad(output.sum(), weight))


def changed_between() -> list[Tensor]:
    data, weight = values(2, 6, 9, 11) * 2, values(6, 1, 5, 4)
    output = F.conv2d(data, weight, groups=6)
    data[:] = 0
    return list(torch.autograd.grad(output.sum(), weight))


def bias_changed_between() -> list[Tensor]:
    data, weight, bias = values(2, 6, 9, 11), values(6, 1, 5, 4), values(6)
    output = F.conv2d(data, weight, bias, groups=6)
    with torch.no_grad():
        bias.zero_()
    return list(torch.autograd.grad(output.sin().sum(), (data, weight, bias)))


def without_a_gradient() -> list[Tensor]:
    """The output is used by nothing that has one."""
    data, weight = values(2, 6, 9, 11), values(6, 1, 5, 4)
    both = torch.cat([F.conv2d(data, weight, groups=6).flatten(), values(3)])
    return list(
        torch.autograd.grad(both[-3:].sum(), weight, allow_unused=True, materialize_grads=True)
    )


def padded_by_name() -> list[Tensor]:
    data, weight = values(3, 6, 9, 11), values(6, 1, 5, 3)
    same = gradients(data, weight, padding="same", dilation=(1, 2), groups=6)
    return [*same, *gradients(data, weight, padding="valid", groups=6)]


BY_KERNELS = [module, by_name, without_a_gradient_of_the_input, of_a_frozen_bias, in_one_dimension,
              second_derivative, of_infinity, with_hooks_on_saved_tensors, checkpointed, twice,
              changed_between, bias_changed_between, without_a_gradient,
              padded_by_name]  # fmt: skip


def several_filters_of_a_channel() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(12, 1, 5, 4), groups=6)


def of_groups() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 2, 5, 4), groups=3)


def frozen() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4).detach(), groups=6)


def without_a_graph() -> list[Tensor]:
    with torch.no_grad():
        return [F.conv2d(values(3, 6, 9, 11), values(6, 1, 5, 4), groups=6)]


def padded_by_name_with_a_stride() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 3), padding="same", stride=2, groups=6)


def transposed() -> list[Tensor]:
    return gradients(values(6, 3, 9, 11).transpose(0, 1), values(6, 1, 5, 4), groups=6)


def without_a_batch() -> list[Tensor]:
    return gradients(values(6, 9, 11), values(6, 1, 5, 4), groups=6)


def of_no_image() -> list[Tensor]:
    return gradients(values(0, 6, 9, 11), values(6, 1, 5, 4), groups=6)


def too_small() -> list[Tensor]:
    return gradients(values(3, 6, 4, 11), values(6, 1, 5, 4), groups=6)


def of_other_channels() -> list[Tensor]:
    return gradients(values(3, 5, 9, 11), values(6, 1, 5, 4), groups=6)


def of_no_stride() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4), stride=0, groups=6)


def of_three_strides() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4), stride=(1, 1, 1), groups=6)


def in_float64() -> list[Tensor]:
    return gradients(values(3, 6, 9, 11).double(), values(6, 1, 5, 4).double(), groups=6)


def of_another_word() -> list[Tensor]:
    return [F.conv2d(values(3, 6, 9, 11), values(6, 1, 5, 4), groups=6, pad=1)]  # type: ignore[call-overload]


def under_autocast() -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return gradients(values(3, 6, 9, 11), values(6, 1, 5, 4), groups=6)


def mapped() -> list[Tensor]:
    weight = values(6, 1, 5, 4)
    return [torch.vmap(lambda x: F.conv2d(x, weight, groups=6))(values(3, 1, 6, 9, 11))]


def of_the_gradient_of_a_function() -> list[Tensor]:
    data = values(3, 6, 9, 11)
    loss = torch.func.grad(lambda weight: F.conv2d(data, weight, groups=6).square().sum())
    return [loss(values(6, 1, 5, 4))]


def compiled() -> list[Tensor]:
    convolve = torch.compile(F.conv2d, backend="aot_eager", fullgraph=True)
    weight = values(6, 1, 5, 4)
    output = convolve(values(3, 6, 9, 11), weight, groups=6)
    return [output, *torch.autograd.grad(output.sum(), weight)]


def scripted() -> list[Tensor]:
    layer = torch.jit.script(nn.Conv2d(6, 6, 5, groups=6, bias=False))
    with torch.no_grad():
        layer.weight.copy_(values(6, 1, 5, 5))
    output = layer(values(3, 6, 9, 11))
    return [output, *torch.autograd.grad(output.sum(), layer.weight)]


BY_TORCH = [several_filters_of_a_channel, of_groups, frozen, without_a_graph,
            padded_by_name_with_a_stride, transposed, without_a_batch, of_no_image, too_small,
            of_other_channels, of_no_stride, of_three_strides, in_float64, of_another_word,
            under_autocast, mapped, of_the_gradient_of_a_function, compiled, scripted]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("function", BY_KERNELS + BY_TORCH)
def test_a_script_cannot_tell(function: Callable[[], list[Tensor]]) -> None:
    error, expected = outcome(function)
    with kernels() as patch:
        found = outcome(function)
        assert bool(patch.num_computed) == (function in BY_KERNELS)
    assert found[0] == error
    for one, other in zip(found[1], expected, strict=True):
        assert one.dtype is other.dtype
        assert one.stride() == other.stride()
        assert torch.allclose(one, other, 1e-4, 1e-4, equal_nan=True)


def test_the_output_is_torchs_to_the_bit_and_its_graph_too() -> None:
    data, weight = values(3, 6, 9, 11), values(6, 1, 5, 4)
    expected = F.conv2d(data, weight, groups=6)
    with kernels():
        found = F.conv2d(data, weight, groups=6)
        assert repr(found) == repr(expected)
    assert torch.equal(found, expected)
    assert type(found.grad_fn).__name__ == type(expected.grad_fn).__name__


def test_subclasses_and_modes_see_the_call() -> None:
    class Loud(torch.Tensor):
        pass

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    data, weight = values(3, 6, 9, 11), values(6, 1, 5, 4)
    with kernels() as patch:
        assert type(F.conv2d(data.detach().as_subclass(Loud), weight, groups=6)) is Loud
        with Mode():
            F.conv2d(data, weight, groups=6)
        assert "aten.convolution.default" in Mode.names
        assert patch.num_computed == 0


def test_kernels_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_grad = DepthwiseKernels.weight_grad
    monkeypatch.setattr(DepthwiseKernels, "weight_grad", lambda *args: weight_grad(*args) * 1.01)
    patch = DepthwiseConvolutions()
    try:
        assert patch.load() is None
        assert patch.problem == "the compiled kernels are wrong"
    finally:
        patch.undo()


def test_what_was_there_before_comes_back() -> None:
    before = (torch.conv2d, F.conv2d, torch.conv1d, F.conv1d)
    with kernels():
        assert torch.conv2d is not before[0]
    assert (torch.conv2d, F.conv2d, torch.conv1d, F.conv1d) == before


@pytest.mark.parametrize("filters", [(3, 3), (1, 3), (5, 5)])
def test_small_filters_and_inputs_are_left_to_torch(filters: tuple[int, int]) -> None:
    patch = DepthwiseConvolutions()
    size = 10 if max(filters) >= runtime.MIN_FILTER else 200
    try:
        gradients(values(2, 6, size, size), values(6, 1, *filters), groups=6)
        assert patch.num_computed == 0
        assert patch.kernels is None
    finally:
        patch.undo()
