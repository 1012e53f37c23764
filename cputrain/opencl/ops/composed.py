"""Operators composed of other operators."""

from __future__ import annotations

import torch

from cputrain.opencl.table import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

aten = torch.ops.aten


@kernel(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    of_input: Tensor,
    of_hidden: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next hidden state, cell state, and the gates for the backward."""
    gates = of_input + of_hidden
    for bias in (input_bias, hidden_bias):
        if bias is not None:
            gates = gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell + i * g
    return o * cell.tanh(), cell, torch.cat([i, f, g, o], 1)


@kernel(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    to_output: Tensor | None,
    to_cell: Tensor | None,
    before: Tensor,
    after: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the gates, the previous cell state and the bias."""
    if to_output is None and to_cell is None:
        return None, None, None
    i, f, g, o = gates.chunk(4, 1)
    bent = after.tanh()
    to_before = torch.zeros_like(after) if to_cell is None else to_cell
    of_o = torch.zeros_like(o)
    if to_output is not None:
        of_o = to_output * bent * (1 - o) * o
        to_before = to_before + to_output * o * (1 - bent * bent)
    of_gates = torch.cat(
        [
            to_before * g * (1 - i) * i,
            to_before * before * (1 - f) * f,
            to_before * i * (1 - g * g),
            of_o,
        ],
        1,
    )
    return of_gates, to_before * f, of_gates.sum(0) if has_bias else None


@kernel(aten._thnn_fused_gru_cell.default)
def gru_cell(
    of_input: Tensor,
    of_hidden: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the next hidden state, and the tensors that the backward needs."""
    if input_bias is not None and hidden_bias is not None:
        of_input, of_hidden = of_input + input_bias, of_hidden + hidden_bias
    (ir, iz, in_), (hr, hz, hn) = of_input.chunk(3, 1), of_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (in_ + r * hn).tanh()
    return n + z * (hidden - n), torch.cat([r, z, n, hidden, hn], 1)


@kernel(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    to_output: Tensor,
    kept: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input gates, hidden gates, previous hidden state and biases."""
    r, z, n, hidden, hn = kept.chunk(5, 1)
    of_n = to_output * (1 - z) * (1 - n * n)
    of_r = of_n * hn * (1 - r) * r
    of_z = to_output * (hidden - n) * (1 - z) * z
    of_input = torch.cat([of_r, of_z, of_n], 1)
    of_hidden = torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, to_output * z, *biases


@kernel(aten.select_backward.default)
def select_backward(grad_output: Tensor, input_sizes: Any, dim: int, index: int) -> Tensor:
    """Scatter the gradient into zeros at the selected index."""
    whole = grad_output.new_zeros(input_sizes)
    whole.select(dim, index).copy_(grad_output)
    return whole


@kernel(aten.slice_backward.default)
def slice_backward(
    grad_output: Tensor, input_sizes: Any, dim: int, start: int, end: int, step: int
) -> Tensor:
    """Scatter the gradient into zeros at the slice."""
    whole = grad_output.new_zeros(input_sizes)
    aten.slice.Tensor(whole, dim, start, end, step).copy_(grad_output)
    return whole


@kernel(aten.constant_pad_nd.default)
def pad(self: Tensor, pad: Any, value: Any = 0) -> Any:
    """Pad with a constant; crop where a padding is negative."""
    ends = list(zip(pad[::2], pad[1::2], strict=True))
    if len(ends) > self.dim():
        return NotImplemented
    size, inner = list(self.size()), self
    for at, (before, after) in enumerate(ends):
        dim = self.dim() - 1 - at
        size[dim] += before + after
        if size[dim] < 0:
            return NotImplemented
        begin, end = max(0, -before), self.size(dim) - max(0, -after)
        if begin > end:
            return NotImplemented
        inner = inner.narrow(dim, begin, end - begin)
    whole = self.new_full(size, value)
    there = whole
    for at, (before, _) in enumerate(ends):
        dim = self.dim() - 1 - at
        there = there.narrow(dim, max(0, before), inner.size(dim))
    there.copy_(inner)
    return whole
