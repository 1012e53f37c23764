"""Elementwise operators, each defined by an OpenCL expression.

A name in capitals in an expression is an argument of the operator's schema in torch.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import torch

from cputrain.opencl.elementwise import run
from cputrain.opencl.shapes import (
    broadcast,
    contiguous,
    is_dense,
    is_partial_alias,
)
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.types import are_supported, can_represent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

SAME_DTYPE = {
    "add.Tensor": "SELF + ALPHA * OTHER",
    "sub.Tensor": "SELF - ALPHA * OTHER",
    "rsub.Scalar": "OTHER - ALPHA * SELF",
    "mul.Tensor": "SELF * OTHER",
    "maximum": "SELF > OTHER || SELF != SELF ? SELF : OTHER",
    "minimum": "SELF < OTHER || SELF != SELF ? SELF : OTHER",
    "addcmul": "SELF + VALUE * TENSOR1 * TENSOR2",
    "neg": "-SELF",
    "abs": "SELF <= 0 ? 0 - SELF : SELF",
    "relu": "SELF < 0 ? 0 : SELF",
    "where.self": "CONDITION != 0 ? SELF : OTHER",
    "masked_fill.Scalar": "MASK != 0 ? VALUE : SELF",
    "threshold_backward": "SELF <= THRESHOLD ? 0 : GRAD_OUTPUT",
}
"""Expressions computed in the promoted dtype of the arguments, which is the result's dtype."""

FLOATING = {
    "div.Tensor": "SELF / OTHER",
    "exp": "exp(SELF)",
    "log": "log(SELF)",
    "sqrt": "sqrt(SELF)",
    "rsqrt": "1 / sqrt(SELF)",
    "sin": "sin(SELF)",
    "cos": "cos(SELF)",
    "reciprocal": "1 / SELF",
    "sigmoid": "1 / (1 + exp(-SELF))",
    "tanh": "tanh(SELF)",
    "erf": "erf(SELF)",
    "expm1": "expm1(SELF)",
    "log1p": "log1p(SELF)",
    "log2": "log2(SELF)",
    "tan": "tan(SELF)",
    "atan": "atan(SELF)",
}
"""Expressions computed in a floating-point dtype, T: the default dtype for integer arguments."""

FLOAT_ONLY = {
    "addcdiv": "SELF + VALUE * TENSOR1 / TENSOR2",
    "silu": "SELF / (1 + exp(-SELF))",
    "hardswish": "SELF <= -3 ? 0 : SELF >= 3 ? SELF : SELF * (SELF + 3) / 6",
    "hardsigmoid": "SELF <= -3 ? 0 : SELF >= 3 ? 1 : (SELF + 3) / 6",
    "hardtanh": "SELF < MIN_VAL ? MIN_VAL : SELF > MAX_VAL ? MAX_VAL : SELF",
    "leaky_relu": "SELF > 0 ? SELF : SELF * NEGATIVE_SLOPE",
    "sigmoid_backward": "GRAD_OUTPUT * (1 - OUTPUT) * OUTPUT",
    "tanh_backward": "GRAD_OUTPUT * (1 - OUTPUT * OUTPUT)",
    "silu_backward": "GRAD_OUTPUT * (1 + SELF * (1 - 1 / (1 + exp(-SELF)))) / (1 + exp(-SELF))",
    "hardswish_backward": "SELF <= -3 ? 0 : SELF < 3 ? GRAD_OUTPUT * (SELF / 3 + (T)0.5)"
    " : GRAD_OUTPUT",
    "hardsigmoid_backward": "SELF > -3 && SELF < 3 ? GRAD_OUTPUT / 6 : 0",
    "hardtanh_backward": "SELF <= MIN_VAL || SELF >= MAX_VAL ? 0 : GRAD_OUTPUT",
    "leaky_relu_backward": "SELF > 0 ? GRAD_OUTPUT : GRAD_OUTPUT * NEGATIVE_SLOPE",
    "elu": "SELF > 0 ? SCALE * SELF : SCALE * ALPHA * expm1(INPUT_SCALE * SELF)",
    "elu_backward": "SELF_OR_RESULT > 0 ? GRAD_OUTPUT * SCALE : GRAD_OUTPUT * INPUT_SCALE"
    " * (IS_RESULT != 0 ? SELF_OR_RESULT + SCALE * ALPHA"
    " : SCALE * ALPHA * exp(SELF_OR_RESULT * INPUT_SCALE))",
    "softplus": "SELF * BETA > THRESHOLD ? SELF : log1p(exp(SELF * BETA)) / BETA",
    "softplus_backward": "SELF * BETA > THRESHOLD ? GRAD_OUTPUT"
    " : GRAD_OUTPUT / (1 + exp(-SELF * BETA))",
    "lerp.Scalar": "fabs(WEIGHT) < (T)0.5 ? SELF + WEIGHT * (END - SELF)"
    " : END - (END - SELF) * (1 - WEIGHT)",
    "pow.Tensor_Scalar": "EXPONENT == 2 ? SELF * SELF : pow(SELF, EXPONENT)",
    "_prelu_kernel": "SELF > 0 ? SELF : WEIGHT * SELF",
    "floor": "floor(SELF)",
    "ceil": "ceil(SELF)",
    "round": "rint(SELF)",
}
"""Expressions computed in a floating-point dtype, T, for floating-point tensors only."""

COMPARISONS = {
    "eq": "SELF == OTHER", "ne": "SELF != OTHER", "lt": "SELF < OTHER", "le": "SELF <= OTHER",
    "gt": "SELF > OTHER", "ge": "SELF >= OTHER",
}  # fmt: skip
"""Comparisons of a tensor with a tensor or a scalar; the result is bool."""

LOGICAL = {
    "logical_not": "SELF == 0", "logical_and": "SELF != 0 && OTHER != 0",
    "logical_or": "SELF != 0 || OTHER != 0", "isnan": "SELF != SELF",
}  # fmt: skip
"""Expressions over tensors only; the result is bool."""

IN_PLACE = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "addcmul", "addcdiv", "relu", "sigmoid",
    "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "lerp.Scalar", "sqrt", "neg",
    "exp", "reciprocal", "tanh", "add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar",
    "masked_fill.Scalar", "elu",
)  # fmt: skip
"""Operators of the tables that torch has in place as well."""

NOT_PROMOTED = ("alpha", "value", "condition", "mask")
"""Arguments that do not take part in type promotion."""


def scalar_of(value: Any) -> Any:
    """Return the value of a real number or a 0-dim CPU tensor; None for all other arguments."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
        number = value.item()
        return None if isinstance(number, complex) else number
    return None


def is_rejected_by_torch(operator: Any, values: Sequence[Any], alpha: Any = None) -> bool:
    """Return whether torch raises for dtypes that the expression would accept.

    The caller returns NotImplemented then, so that torch raises its own error.
    """
    if isinstance(alpha, bool):
        return True
    if isinstance(alpha, float) and not any(
        value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)
        for value in values
    ):
        return True
    return "sub" in operator.name() and any(
        value.dtype is torch.bool if isinstance(value, torch.Tensor) else isinstance(value, bool)
        for value in values
    )


def register_expression(
    operator: Any, expression: str, result_kind: str, *, in_place: bool = False
) -> None:
    """Register an expression as the kernel of an operator.

    Args:
        operator: Operator overload.
        expression: OpenCL C expression over the names of its arguments, in capitals.
        result_kind: "same" for the promoted dtype, "float" for a floating-point dtype, "floats"
            for floating-point tensors only, "bool" for a bool result.
        in_place: Whether the operator writes to its argument `self`.
    """
    names, defaults = schema_arguments(operator)
    used = set(re.findall("[A-Z][A-Z0-9_]+", expression))

    @kernel(operator)
    def compute(*args: Any, **kwargs: Any) -> Any:
        arguments_by_name = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        tensors: list[tuple[str, OclTensor]] = []
        scalars: list[tuple[str, Any]] = []
        values = []
        for name in names:
            if name.upper() not in used:
                continue
            value = arguments_by_name[name]
            if isinstance(value, OclTensor):
                tensors.append((name.upper(), value))
            elif (number := scalar_of(value)) is not None:
                scalars.append((name.upper(), number))
            else:
                return NotImplemented
            if name not in NOT_PROMOTED:
                values.append(value)
        if is_rejected_by_torch(operator, values, arguments_by_name.get("alpha")):
            return NotImplemented
        out = arguments_by_name["self"] if in_place else None
        if in_place and not isinstance(out, OclTensor):
            return NotImplemented
        return compute_expression(
            expression, result_kind, out, tensors, scalars, result_type(values)
        )


def schema_arguments(operator: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an operator's arguments, and the defaults of those that have one."""
    arguments = operator._schema.arguments
    defaults = {
        argument.name: argument.default_value
        for argument in arguments
        if argument.has_default_value()
    }
    return [argument.name for argument in arguments], defaults


def compute_expression(
    expression: str,
    result_kind: str,
    out: OclTensor | None,
    tensors: list[tuple[str, OclTensor]],
    scalars: list[tuple[str, Any]],
    computes: torch.dtype,
) -> Any:
    """Evaluate an expression into a new tensor or `out`, and return it.

    Args:
        expression: OpenCL C expression over the names of tensors and scalars.
        result_kind: Kind of the result's dtype; see `register_expression`.
        out: Tensor to write to; None for a new tensor.
        tensors: (name, tensor) pairs, which are broadcast.
        scalars: (name, value) pairs.
        computes: Dtype to compute in, unless `result_kind` demands a floating-point dtype.
    """
    device = tensors[0][1].memory.device
    if result_kind == "floats" and not all(tensor.is_floating_point() for _, tensor in tensors):
        return NotImplemented
    if result_kind.startswith("float") and not computes.is_floating_point:
        if result_kind == "floats":
            return NotImplemented
        computes = torch.get_default_dtype()
    inferred = _infer_result(
        result_kind,
        device,
        None if out is None else (out.dtype, out.size(), out.stride()),
        tuple([(tensor.dtype, tensor.size(), tensor.stride()) for _, tensor in tensors]),
        computes,
    )
    if inferred is None:
        return NotImplemented
    result_dtype, size, stride = inferred
    for _, tensor in tensors:
        if tensor.memory.device is not device or (
            out is not None and is_partial_alias(out, tensor)
        ):
            return NotImplemented
    if not all(can_represent(computes, value) for _, value in scalars):
        return NotImplemented
    if out is None:
        out = empty(device.index, size, stride, result_dtype)
    run(
        expression, out, tensors, [(name, computes, value) for name, value in scalars],
        computes=computes,
    )  # fmt: skip
    return out


@lru_cache(maxsize=1 << 14)
def _infer_result(
    result_kind: str,
    device: Device,
    out: tuple[torch.dtype, Any, Any] | None,
    metadata: tuple[tuple[torch.dtype, Any, Any], ...],
    computes: torch.dtype,
) -> tuple[torch.dtype, Any, Any] | None:
    """Return dtype, size and strides of the result; None if no kernel supports the arguments."""
    result_dtype = torch.bool if result_kind == "bool" else computes
    size = broadcast([size for _, size, _ in metadata])
    if size is None or (computes is torch.bool and result_kind != "bool"):
        return None
    if out is not None:
        result_dtype = out[0]
        if not torch.can_cast(computes, result_dtype) or size != list(out[1]):
            return None
        if any(n > 1 and not step for n, step in zip(out[1], out[2], strict=True)):
            return None  # elements overlap: torch raises its own error
    if not are_supported(device, computes, result_dtype, *(dtype for dtype, _, _ in metadata)):
        return None
    fitting = (
        tensor_stride
        for _, tensor_size, tensor_stride in metadata
        if list(tensor_size) == size and is_dense(tensor_size, tensor_stride)
    )
    return result_dtype, size, next(fitting, contiguous(size))


def result_type(values: list[Any]) -> torch.dtype:
    """Return the promoted dtype of tensors and Python scalars, as `torch.result_type` does."""
    return _result_type(
        torch.get_default_dtype(),
        tuple(
            (value.dtype, min(value.dim(), 1)) if isinstance(value, torch.Tensor) else type(value)
            for value in values
        ),
    )


@cache
def _result_type(default: torch.dtype, operands: tuple[Any, ...]) -> torch.dtype:
    """Promote as torch does: first tensors with dimensions, then 0-dim tensors, then scalars.

    An operand of a later group counts only if it is of a higher category, as a float scalar with
    integer tensors.
    """
    with_dims: torch.dtype | None = None
    zero_dim: torch.dtype | None = None
    scalars: torch.dtype | None = None
    scalar_dtypes = {bool: torch.bool, int: torch.int64, float: default}
    for operand in operands:
        if not isinstance(operand, tuple):
            scalars = _promote(scalars, scalar_dtypes[operand])
        elif operand[1]:
            with_dims = _promote(with_dims, operand[0])
        else:
            zero_dim = _promote(zero_dim, operand[0])
    dtype = _promote_by_category(with_dims, _promote_by_category(zero_dim, scalars))
    assert dtype is not None
    return dtype


def _promote(first: torch.dtype | None, second: torch.dtype) -> torch.dtype:
    return second if first is None else torch.promote_types(first, second)


def _promote_by_category(
    first: torch.dtype | None, second: torch.dtype | None
) -> torch.dtype | None:
    """Return the first dtype, unless the second has a higher category: then promote both.

    The categories are bool, integer, floating-point and complex, in ascending order.
    """
    if first is None or second is None:
        return first if second is None else second
    if first.is_complex or (first.is_floating_point and not second.is_complex):
        return first
    if first is torch.bool or second.is_floating_point or second.is_complex:
        return torch.promote_types(first, second)
    return first


def _overload(name: str, suffix: str = "") -> Any:
    """Return torch's overload of a name such as "add.Tensor"; "relu" names the default overload."""
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base + suffix), overload or "default")


for _name in ("add", "sub", "mul"):
    SAME_DTYPE[f"{_name}.Scalar"] = SAME_DTYPE[f"{_name}.Tensor"]
for _name in ("ScalarSelf", "ScalarOther"):
    SAME_DTYPE[f"where.{_name}"] = SAME_DTYPE["where.self"]
FLOATING["div.Scalar"] = FLOATING["div.Tensor"]

for _table, _result_kind in ((SAME_DTYPE, "same"), (FLOATING, "float"), (FLOAT_ONLY, "floats")):
    for _name, _expression in _table.items():
        register_expression(_overload(_name), _expression, _result_kind)
        if _name in IN_PLACE:
            register_expression(_overload(_name, "_"), _expression, _result_kind, in_place=True)
for _name, _expression in COMPARISONS.items():
    for _overload_name in ("Tensor", "Scalar"):
        register_expression(_overload(f"{_name}.{_overload_name}"), _expression, "bool")
for _name, _expression in LOGICAL.items():
    register_expression(_overload(_name), _expression, "bool")
