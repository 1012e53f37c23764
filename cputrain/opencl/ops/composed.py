"""Operators that are computed by other operators: recurrent cells, slice gradients, padding."""

from __future__ import annotations

import torch

from cputrain.opencl.table import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import Tensor

aten = torch.ops.aten


@kernel(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next hidden state, cell state, and the gates for the backward."""
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        if bias is not None:
            gates = gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


@kernel(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the gates, the previous cell state and the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    tanh_cy = cy.tanh()
    grad_c = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(o)
    if grad_hy is not None:
        grad_o = grad_hy * tanh_cy * (1 - o) * o
        grad_c = grad_c + grad_hy * o * (1 - tanh_cy * tanh_cy)
    grad_gates = torch.cat(
        [
            grad_c * g * (1 - i) * i,
            grad_c * cx * (1 - f) * f,
            grad_c * i * (1 - g * g),
            grad_o,
        ],
        1,
    )
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


@kernel(aten._thnn_fused_gru_cell.default)
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the next hidden state, and the tensors that the backward needs."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (ir, iz, in_), (hr, hz, hn) = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (in_ + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


@kernel(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    grad_hy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input gates, hidden gates, previous hidden state and biases."""
    r, z, n, hx, hn = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * (1 - r) * r
    grad_z = grad_hy * (hx - n) * (1 - z) * z
    grad_input_gates = torch.cat([grad_r, grad_z, grad_n], 1)
    grad_hidden_gates = torch.cat([grad_r, grad_z, grad_n * r], 1)
    grad_biases = (grad_input_gates.sum(0), grad_hidden_gates.sum(0)) if has_bias else (None, None)
    return grad_input_gates, grad_hidden_gates, grad_hy * z, *grad_biases


@kernel(aten.select_backward.default)
def select_backward(grad_output: Tensor, input_sizes: Any, dim: int, index: int) -> Tensor:
    """Scatter the gradient into zeros at the selected index."""
    grad_input = grad_output.new_zeros(input_sizes)
    grad_input.select(dim, index).copy_(grad_output)
    return grad_input


@kernel(aten.slice_backward.default)
def slice_backward(
    grad_output: Tensor, input_sizes: Any, dim: int, start: int, end: int, step: int
) -> Tensor:
    """Scatter the gradient into zeros at the slice."""
    grad_input = grad_output.new_zeros(input_sizes)
    aten.slice.Tensor(grad_input, dim, start, end, step).copy_(grad_output)
    return grad_input


@kernel(aten.constant_pad_nd.default)
def pad(self: Tensor, pad: Any, value: Any = 0) -> Any:
    """Pad with a constant; crop where a padding is negative."""
    ends = list(zip(pad[::2], pad[1::2], strict=True))
    if len(ends) > self.dim():
        return NotImplemented
    size, inner = list(self.size()), self
    for index, (before, after) in enumerate(ends):
        dim = self.dim() - 1 - index
        size[dim] += before + after
        if size[dim] < 0:
            return NotImplemented
        begin, end = max(0, -before), self.size(dim) - max(0, -after)
        if begin > end:
            return NotImplemented
        inner = inner.narrow(dim, begin, end - begin)
    out = self.new_full(size, value)
    target = out
    for index, (before, _) in enumerate(ends):
        dim = self.dim() - 1 - index
        target = target.narrow(dim, max(0, before), inner.size(dim))
    target.copy_(inner)
    return out


@kernel(aten.repeat.default)
def repeat(self: Tensor, repeats: Any) -> Any:
    """Copy the tensor side by side: expanded to a dimension of copies before each of its own."""
    if len(repeats) < self.dim() or min(repeats, default=1) < 0:
        return NotImplemented
    size = (1,) * (len(repeats) - self.dim()) + tuple(self.size())
    expanded = self.reshape([number for length in size for number in (1, length)]).expand(
        [number for pair in zip(repeats, size, strict=True) for number in pair]
    )
    out = self.new_empty([count * length for count, length in zip(repeats, size, strict=True)])
    out.view(expanded.size()).copy_(expanded)
    return out


@kernel(aten.tril.default)
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the lower triangle."""
    return _where(_columns_right_of_diagonal(self) <= diagonal, self)


@kernel(aten.triu.default)
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the upper triangle."""
    return _where(_columns_right_of_diagonal(self) >= diagonal, self)


def _where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the values where the mask is true, else zeros."""
    if values.dtype is torch.bool:
        return values & mask
    return torch.where(mask, values, torch.zeros_like(values))


def _columns_right_of_diagonal(matrix: Tensor) -> Tensor:
    """Return how far each column is to the right of the diagonal."""
    rows, columns = (torch.arange(size, device=matrix.device) for size in matrix.size()[-2:])
    return columns - rows.unsqueeze(1)


LOGICAL: dict[Any, Any] = {
    aten.bitwise_and.Tensor: torch.logical_and, aten.bitwise_or.Tensor: torch.logical_or,
    aten.bitwise_xor.Tensor: torch.ne, aten.bitwise_not.default: torch.logical_not,
}  # fmt: skip
"""Operators on bits that are those on truth values if tensors are bool."""


def _register_logical(operator: Any, function: Callable[..., Tensor]) -> None:
    @kernel(operator)
    def compute(*tensors: Any) -> Any:
        are_bool = all(getattr(each, "dtype", None) is torch.bool for each in tensors)
        return function(*tensors) if are_bool else NotImplemented


for _operator, _function in LOGICAL.items():
    _register_logical(_operator, _function)
