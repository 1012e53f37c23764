"""Compute attention with dropout in blocks: the probabilities of all heads are never in memory.

Torch's operators hold the products of all queries and keys, their softmax, the noise, and what
both give; backward needs three of these. A block of a few heads, or of some rows of one head, fits
in the caches of the cores. Backward computes its probabilities again, and draws its noise again
from the state that the generator had: the same numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Generator, Tensor

BLOCK_ELEMENTS = 1 << 18
"""Products of queries and keys in a block, for each thread: 1 MiB, as much as an L2 cache holds."""

CAUSAL_ROWS = 256
"""Rows of a block that are computed at a time where they see no columns behind their own."""


class AttentionInputs(NamedTuple):
    """AttentionInputs of attention, with leading dimensions flattened into one."""

    query: Tensor
    """Queries times the square root of the scale; (heads, rows, width)."""

    key: Tensor
    """Keys times the square root of the absolute scale; (heads, width, columns)."""

    value: Tensor
    """Values; (heads, columns, width of values)."""

    mask: Tensor | None
    """What is added to the products; (heads, rows, columns).

    Where it is expanded in some dimensions that are flattened in the others, they are not so here.
    """


class AttentionNoise(NamedTuple):
    """The noise of all blocks, which are drawn one after another."""

    draw: Callable[[Tensor, float, Generator], Tensor | None]
    """Draws the noise for a tensor from a generator; None if another thread has drawn from it."""

    probability: float

    is_causal: bool
    """Whether row i sees the columns up to i alone."""

    state: Tensor
    """State of the generator before the first block."""


class AttentionTile(NamedTuple):
    """Some rows of some heads, the columns that they see, and their noise."""

    heads: slice
    rows: slice
    columns: slice
    noise: Tensor
    diagonal_mask: Tensor | None
    """Mask of the columns from the number of the first row on, if attention is causal."""


def tiles(
    inputs: AttentionInputs, noise: AttentionNoise, generator: Generator
) -> Iterator[AttentionTile]:
    """Yield the tiles of all blocks, in the order of memory, in which the noise is drawn."""
    num_heads, num_rows, _ = inputs.query.shape
    num_columns = inputs.key.size(2)
    most = BLOCK_ELEMENTS * torch.get_num_threads()
    step_heads = max(1, most // (num_rows * num_columns))
    step_rows = num_rows if step_heads > 1 else max(1, min(num_rows, most // num_columns))
    tile_rows = min(step_rows, CAUSAL_ROWS) if noise.is_causal else step_rows
    triangle = causal_mask((tile_rows, tile_rows)) if noise.is_causal else None
    for head in range(0, num_heads, step_heads):
        heads = slice(head, head + step_heads)
        for row in range(0, num_rows, step_rows):
            shape = (min(step_heads, num_heads - head), min(step_rows, num_rows - row), num_columns)
            drawn = _drawn(noise, inputs.query.new_empty(shape), generator)
            for start in range(0, shape[1], tile_rows):
                rows = slice(row + start, row + min(start + tile_rows, shape[1]))
                columns = slice(0, min(rows.stop, num_columns) if noise.is_causal else num_columns)
                part = drawn[:, start : start + tile_rows, columns]
                mask = None
                if triangle is not None:
                    mask = triangle[: rows.stop - rows.start, : max(0, columns.stop - rows.start)]
                yield AttentionTile(heads, rows, columns, part, mask)


def _drawn(noise: AttentionNoise, data: Tensor, generator: Generator) -> Tensor:
    drawn = noise.draw(data, noise.probability, generator)
    assert drawn is not None, "no other thread has this generator"
    return drawn


def generator_in(state: Tensor) -> Generator:
    """Return a generator on the CPU in this state."""
    generator = torch.Generator("cpu")
    generator.set_state(state)
    return generator


def compute(inputs: AttentionInputs, noise: AttentionNoise) -> tuple[Tensor, Tensor]:
    """Return the output, and the state of the generator after the last block."""
    generator = generator_in(noise.state)
    output = inputs.value.new_empty((*inputs.query.shape[:2], inputs.value.size(2)))
    for tile in tiles(inputs, noise, generator):
        probabilities = _probabilities(inputs, tile).mul_(tile.noise)
        output[tile.heads, tile.rows] = torch.bmm(
            probabilities, inputs.value[tile.heads, tile.columns]
        )
    return output, generator.get_state()


class BlockedAttention(Function):
    """Attention whose output is computed already, for its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        computed: tuple[Tensor],
        noise: AttentionNoise,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        ctx.noise = noise
        ctx.save_for_backward(query, key, value, mask)
        ctx.set_materialize_grads(False)
        return computed[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return (None,) * 6
        is_differentiable = torch.is_grad_enabled()  # by create_graph
        gradients = _differentiable_gradients if is_differentiable else _gradients
        return None, None, *gradients(AttentionInputs(*ctx.saved_tensors), ctx.noise, grad), None


_Node: Any = BlockedAttention._backward_cls
_Node.__name__ = "UnsafeViewBackward0"  # as an output is printed


def _probabilities(inputs: AttentionInputs, tile: AttentionTile) -> Tensor:
    """Return the softmax of the products of a tile."""
    products = torch.bmm(
        inputs.query[tile.heads, tile.rows], inputs.key[tile.heads, :, tile.columns]
    )
    if tile.diagonal_mask is not None:
        products[:, :, tile.rows.start :] += tile.diagonal_mask
    elif inputs.mask is not None:
        products += _mask_of(tile, inputs.mask)
    probabilities = torch.softmax(products, -1)
    first = probabilities[..., 0]
    if bool((first != first).any()):  # NaN: rows that are masked everywhere are to be 0
        probabilities = torch._safe_softmax(products, -1)
    return probabilities


def causal_mask(shape: Sequence[int]) -> Tensor:
    """Return 0 for columns up to the number of a row, and minus infinity for those behind."""
    return torch.full(tuple(shape), -math.inf, device="cpu").triu_(1)


def _mask_of(tile: AttentionTile, mask: Tensor) -> Tensor:
    """Return the mask of a tile; (heads, rows, columns)."""
    *leading, _, _ = mask.shape
    if len(leading) == 1:
        return mask[tile.heads, tile.rows]
    heads = torch.arange(math.prod(leading), device="cpu")[tile.heads]
    return mask[torch.unravel_index(heads, leading)][:, tile.rows]


def _gradients(
    inputs: AttentionInputs, noise: AttentionNoise, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    query, key, value, _ = inputs
    grad = grad.reshape(-1, *grad.shape[-2:])
    query_grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    key_grad, value_grad = (
        torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (key, value)
    )
    for tile in tiles(inputs, noise, generator_in(noise.state)):
        heads, rows, columns, drawn, _ = tile
        probabilities = _probabilities(inputs, tile)
        value_grad[heads, columns].baddbmm_(
            (probabilities * drawn).transpose(1, 2), grad[heads, rows]
        )
        products_grad = torch.bmm(grad[heads, rows], value[heads, columns].transpose(1, 2))
        products_grad *= drawn
        products_grad = torch._softmax_backward_data(
            products_grad, probabilities, -1, torch.float32
        )
        query_grad[heads, rows] = torch.bmm(products_grad, key[heads, :, columns].transpose(1, 2))
        key_grad[heads, :, columns].baddbmm_(query[heads, rows].transpose(1, 2), products_grad)
    return query_grad, key_grad, value_grad


def _differentiable_gradients(
    inputs: AttentionInputs, noise: AttentionNoise, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by operators that can be differentiated again."""
    query, key, value, mask = inputs
    products = query @ key
    if noise.is_causal:
        mask = causal_mask(products.shape[1:])
    if mask is not None:
        products = products + mask.expand(*mask.shape[:-2], *products.shape[1:]).reshape(
            -1, *products.shape[1:]
        )
    probabilities = torch._safe_softmax(products, -1)
    with torch.no_grad():
        drawn = _drawn(noise, probabilities.detach(), generator_in(noise.state))
    output = ((probabilities * drawn) @ value).reshape(grad.shape)
    needed = [tensor for tensor in inputs[:3] if tensor.requires_grad]
    computed = iter(torch.autograd.grad(output, needed, grad, create_graph=True))
    return tuple(next(computed) if tensor.requires_grad else None for tensor in inputs[:3])
