"""Clamp and GELU: elementwise operators whose expression depends on their arguments."""

from __future__ import annotations

from typing import Any

import torch

from cputrain.opencl.ops.pointwise import compute_expression, result_type
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor

aten = torch.ops.aten


@kernel(aten.clamp.default)
def clamp(self: OclTensor, min: Any = None, max: Any = None) -> Any:  # noqa: A002  (torch's names)
    """Clamp each element to [min, max]."""
    return _clamp(None, self, min, max)


@kernel(aten.clamp_.default)
def clamp_(self: OclTensor, min: Any = None, max: Any = None) -> Any:  # noqa: A002
    """Clamp each element to [min, max], in place."""
    return _clamp(self, self, min, max)


@kernel(aten.clamp_min.default)
def clamp_min(self: OclTensor, min: Any) -> Any:  # noqa: A002
    """Clamp each element to at least `min`."""
    return _clamp(None, self, min, None)


@kernel(aten.clamp_max.default)
def clamp_max(self: OclTensor, max: Any) -> Any:  # noqa: A002
    """Clamp each element to at most `max`."""
    return _clamp(None, self, None, max)


def _clamp(out: OclTensor | None, self: OclTensor, low: Any, high: Any) -> Any:
    scalars = [(name, bound) for name, bound in (("LOW", low), ("HIGH", high)) if bound is not None]
    if not scalars or any(isinstance(bound, (complex, torch.Tensor)) for _, bound in scalars):
        return NotImplemented
    expression = "SELF"
    if low is not None:
        expression = "SELF < LOW || LOW != LOW ? LOW : SELF"
    if high is not None:
        expression = f"({expression}) > HIGH || HIGH != HIGH ? HIGH : ({expression})"
    dtype = result_type([self, *(bound for _, bound in scalars)])
    return compute_expression(expression, "same", out, [("SELF", self)], scalars, dtype)


GELU = {
    "none": "SELF * (T)0.5 * (1 + erf(SELF * (T)0.70710678118654752440))",
    "tanh": "SELF * (T)0.5 * (1 + tanh((T)0.79788456080286535588"
    " * (SELF + (T)0.044715 * SELF * SELF * SELF)))",
}
"""Expression of GELU by its argument `approximate`."""

TANH = "tanh((T)0.79788456080286535588 * (SELF + (T)0.044715 * SELF * SELF * SELF))"
"""Tanh factor of the approximation of GELU."""

GELU_GRADIENT = {
    "none": "GRAD * ((T)0.5 * (1 + erf(SELF * (T)0.70710678118654752440))"
    " + SELF * exp((T)-0.5 * SELF * SELF) * (T)0.39894228040143267794)",
    "tanh": f"GRAD * (T)0.5 * (1 + {TANH} + SELF * (1 - {TANH} * {TANH})"
    " * (T)0.79788456080286535588 * (1 + (T)0.134145 * SELF * SELF))",
}
"""Expression of the gradient of GELU by its argument `approximate`."""


@kernel(aten.gelu.default)
def gelu(self: OclTensor, *, approximate: str = "none") -> Any:
    """Compute GELU, exactly or by its tanh approximation."""
    if approximate not in GELU:
        return NotImplemented
    return compute_expression(GELU[approximate], "floats", None, [("SELF", self)], [], self.dtype)


@kernel(aten.gelu_backward.default)
def gelu_backward(grad_output: OclTensor, self: OclTensor, *, approximate: str = "none") -> Any:
    """Compute the gradient of GELU with respect to its input."""
    if approximate not in GELU_GRADIENT or grad_output.dtype is not self.dtype:
        return NotImplemented
    tensors = [("GRAD", grad_output), ("SELF", self)]
    return compute_expression(GELU_GRADIENT[approximate], "floats", None, tensors, [], self.dtype)
