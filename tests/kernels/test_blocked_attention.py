"""Attention with dropout, computed in blocks, has the effects of torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cputrain.kernels import build, dropout
from cputrain.runtime import blocked_attention
from cputrain.runtime import dropout as runtime
from cputrain.runtime.dropout import Dropouts

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

ROWS, COLUMNS, WIDTH = 9, 11, 8


@contextmanager
def blocks(elements: int = 40, causal_rows: int = 4) -> Iterator[list[int]]:
    """Patch torch, and compute attention of any size in blocks; yield whether this was done."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runtime, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(dropout, "NUMBERS_OF_THREAD", 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr(runtime, "BLOCK_ELEMENTS", 0)
        monkeypatch.setattr(blocked_attention, "BLOCK_ELEMENTS", elements)
        monkeypatch.setattr(blocked_attention, "CAUSAL_ROWS", causal_rows)
        computed: list[int] = []
        original = blocked_attention.compute

        def compute(*args: Any) -> Any:
            computed.append(1)
            return original(*args)

        monkeypatch.setattr(runtime, "compute", compute)
        patch = Dropouts()
        assert patch.load() is not None
        try:
            yield computed
        finally:
            patch.undo()


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def outcome(function: Callable[[], list[Tensor]]) -> tuple[str, list[Tensor], Tensor]:
    """What a function raises, its results, and the state of the generator after it."""
    torch.manual_seed(0)
    try:
        error, results = "", [tensor.detach().clone() for tensor in function()]
    except (RuntimeError, ValueError, TypeError) as raised:
        error, results = f"{type(raised).__name__}: {raised}", []
    return error, results, torch.get_rng_state()


def assert_same(function: Callable[[], list[Tensor]], **sizes: int) -> list[int]:
    """Run a function with and without blocks; return how often there were any."""
    error, expected, state = outcome(function)
    with blocks(**sizes) as computed:
        result_error, results, result_state = outcome(function)
    assert result_error == error
    assert torch.equal(result_state, state)
    for result, wanted in zip(results, expected, strict=True):
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-6, equal_nan=True)
    return computed


def inputs(*leading: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        values(*leading, ROWS, WIDTH), values(*leading, COLUMNS, WIDTH),
        values(*leading, COLUMNS, 3),
    )  # fmt: skip


def mask(*leading: int, dtype: torch.dtype = torch.float32) -> Tensor:
    numbers = torch.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS).expand(*leading, -1, -1)
    factors = torch.arange(1, 1 + numbers[..., :1, :1].numel()).reshape(*leading, 1, 1)
    scaled = numbers * factors
    return (scaled * 7).sin() > -0.5 if dtype is torch.bool else scaled


BOOL = torch.bool
NO_KEY = torch.full((ROWS, COLUMNS), -torch.inf).index_fill(0, torch.tensor([2, 5]), 0.0)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": -0.7},
    "half": {"dropout_p": 0.5}, "mask": {"attn_mask": mask()},
    "mask of bool": {"attn_mask": mask(dtype=BOOL)},
    "mask of samples": {"attn_mask": mask(2, 1)}, "mask of heads": {"attn_mask": mask(1, 3)},
    "mask of all": {"attn_mask": mask(2, 3, dtype=BOOL)},
    "rows without a key": {"attn_mask": NO_KEY},
    "mask of columns": {"attn_mask": mask()[:1]}, "wrong mask": {"attn_mask": mask()[:, 1:]},
    "mask of too many": {"attn_mask": mask(5, 2, 3)},
}  # fmt: skip


@pytest.mark.parametrize("elements", [1, 25, 40, 99, 200, 10_000])
@pytest.mark.parametrize("name", OPTIONS)
def test_results_and_gradients_are_torchs(name: str, elements: int) -> None:
    def compute() -> list[Tensor]:
        tensors = inputs(2, 3)
        output = F.scaled_dot_product_attention(*tensors, **{"dropout_p": 0.3, **OPTIONS[name]})
        return [output, *torch.autograd.grad(output.sin().sum(), tensors)]

    computed = assert_same(compute, elements=elements)
    assert bool(computed) == (name not in {"wrong mask", "mask of too many"})


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_as_near_to_float64_as_torchs(name: str) -> None:
    if name in {"wrong mask", "mask of too many"}:
        return
    options = {"dropout_p": 0.3, **OPTIONS[name]}

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        tensors = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs(2, 3)]
        added = {
            key: value.to(dtype) if key == "attn_mask" and value.dtype is not BOOL else value
            for key, value in options.items()
        }
        output = F.scaled_dot_product_attention(*tensors, **added)
        return list(torch.autograd.grad(output.sin().sum(), tensors))

    exact, plain = gradients(torch.float64), gradients(torch.float32)
    with blocks():
        blocked = gradients(torch.float32)
    for wanted, by_torch, by_blocks in zip(exact, plain, blocked, strict=True):
        floor = 2e-7 * wanted.abs().max()
        assert (by_blocks - wanted).abs().max() <= 2 * (by_torch - wanted).abs().max() + floor


def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output: Tensor = F.scaled_dot_product_attention(
        query, key, value, **{"dropout_p": 0.3, **options}
    )
    return output


def of_one_product() -> list[Tensor]:
    """Query, key and value as models have them: views of one product, with heads inside."""
    data = values(2, ROWS, 3 * 4 * WIDTH)
    parts = (data * 2).split(4 * WIDTH, 2)
    heads = [part.view(2, ROWS, 4, WIDTH).transpose(1, 2) for part in parts]
    output = attend(*heads, is_causal=True).transpose(1, 2).reshape(2, ROWS, -1)
    return [output, *torch.autograd.grad(output.sin().sum(), data)]


def more_rows_than_columns() -> list[Tensor]:
    tensors = [values(2, length, WIDTH) for length in (15, 6, 6)]
    output = attend(*tensors, is_causal=True)
    return [output, *torch.autograd.grad(output.sin().sum(), tensors)]


def some_gradients() -> list[Tensor]:
    query, key, value = inputs(2, 3)
    output = attend(query.detach(), key, value.detach())
    return [output, *torch.autograd.grad(output.sin().sum(), key)]


def second_derivative() -> list[Tensor]:
    tensors = inputs(2, 3)
    output = attend(*tensors, is_causal=True)
    grads = torch.autograd.grad(output.sin().sum(), tensors, create_graph=True)
    total = torch.stack([grad.square().sum() for grad in grads]).sum()
    return [*grads, *torch.autograd.grad(total, tensors)]


def second_derivative_with_mask() -> list[Tensor]:
    tensors = inputs(2, 3)
    output = attend(*tensors, attn_mask=mask(2, 1))
    (grad,) = torch.autograd.grad(output.sin().sum(), tensors[0], create_graph=True)
    return [grad, *torch.autograd.grad(grad.square().sum(), tensors)]


def twice() -> list[Tensor]:
    tensors = inputs(2, 3)
    output = attend(*tensors)
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    torch.rand(5)
    return [*first, *torch.autograd.grad(output.square().sum(), tensors)]


def without_a_graph_left() -> list[Tensor]:
    output = attend(*inputs(2, 3))
    output.sum().backward()
    output.sum().backward()
    return []


def query_changed() -> list[Tensor]:
    query, key, value = inputs(2, 3)
    middle = query * 2
    output = attend(middle, key * 2, value)
    middle.zero_()
    return [*torch.autograd.grad(output.sin().sum(), (query, key, value))]


def value_changed() -> list[Tensor]:
    query, key, value = inputs(2, 3)
    middle = value * 2
    output = attend(query, key, middle)
    middle.zero_()
    return [*torch.autograd.grad(output.sin().sum(), (query, key, value))]


def mask_changed() -> list[Tensor]:
    tensors, added = inputs(2, 3), mask(2, 1).clone()
    output = attend(*tensors, attn_mask=added)
    added.zero_()
    return [*torch.autograd.grad(output.sin().sum(), tensors)]


def checkpointed() -> list[Tensor]:
    tensors = inputs(2, 3)
    output = checkpoint(lambda *a: attend(*a).sin(), *tensors, use_reentrant=False)
    return [*torch.autograd.grad(output.sum(), tensors)]


def without_gradients() -> list[Tensor]:
    tensors = inputs(2, 3)
    with torch.no_grad():
        first = attend(*tensors)
    return [first, attend(*(tensor.detach() for tensor in tensors))]


def infinite() -> list[Tensor]:
    query, key, value = inputs(2, 3)
    with torch.no_grad():
        key[0, 0, 0] = -torch.inf
        query[1] = torch.nan
    output = attend(query, key, value)
    return [output, *torch.autograd.grad(output.sum(), (query, key, value))]


def mask_with_gradient() -> list[Tensor]:
    tensors, added = inputs(2, 3), mask(2, 1).requires_grad_()
    output = attend(*tensors, attn_mask=added)
    return [output, *torch.autograd.grad(output.sin().sum(), (*tensors, added))]


def hooked() -> list[Tensor]:
    tensors = inputs(2, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 1, lambda x: x):
        output = attend(*tensors)
    return [output, *torch.autograd.grad(output.sin().sum(), tensors)]


IN_BLOCKS = [of_one_product, more_rows_than_columns, some_gradients, second_derivative, twice,
             second_derivative_with_mask, without_a_graph_left, query_changed, value_changed,
             mask_changed, without_gradients, infinite]  # fmt: skip


@pytest.mark.parametrize(
    "function", [*IN_BLOCKS, checkpointed, mask_with_gradient, hooked], ids=lambda f: f.__name__
)
def test_a_script_cannot_tell(function: Callable[[], list[Tensor]]) -> None:
    for elements in (1, 40, 200):
        assert bool(assert_same(function, elements=elements)) == (function in IN_BLOCKS)


def test_the_graph_is_torchs() -> None:
    expected = type(attend(*inputs(2, 3)).grad_fn).__name__
    with blocks() as computed:
        assert type(attend(*inputs(2, 3)).grad_fn).__name__ == expected
        assert computed


def test_what_another_thread_drew_meanwhile_is_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = inputs(2, 3)
    with blocks():
        original = runtime.compute

        def interrupted(*args: Any) -> Any:
            computed = original(*args)
            torch.rand(3)
            return computed

        monkeypatch.setattr(runtime, "compute", interrupted)
        torch.manual_seed(0)
        output = attend(*tensors)
    torch.manual_seed(0)
    torch.rand(3)
    torch.testing.assert_close(output, attend(*tensors))


@pytest.mark.parametrize(("length", "is_in_blocks"), [(64, False), (600, True)])
def test_large_attention_is_in_blocks(
    monkeypatch: pytest.MonkeyPatch, length: int, is_in_blocks: bool
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    computed: list[int] = []
    original = runtime.compute
    monkeypatch.setattr(runtime, "compute", lambda *a: computed.append(1) or original(*a))
    patch = Dropouts()
    try:
        attend(*(values(1, 2, length, WIDTH) for _ in range(3)))
    finally:
        patch.undo()
    assert bool(computed) == is_in_blocks
