"""Operators that look at one element of each tensor at a time, by expressions.

A name in capitals in an expression is that of an argument in torch's schema.
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

SAME = {
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
"""Computed in the type that torch gives the arguments together, which is the result's."""

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
"""Computed in a floating type. T is its name."""

OF_FLOATS = {
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
"""The same, where the arguments are floating numbers already."""

COMPARED = {
    "eq": "SELF == OTHER", "ne": "SELF != OTHER", "lt": "SELF < OTHER", "le": "SELF <= OTHER",
    "gt": "SELF > OTHER", "ge": "SELF >= OTHER",
}  # fmt: skip
"""What is true or false; of a tensor and another, or a number."""

TRUE = {
    "logical_not": "SELF == 0", "logical_and": "SELF != 0 && OTHER != 0",
    "logical_or": "SELF != 0 || OTHER != 0", "isnan": "SELF != SELF",
}  # fmt: skip
"""The same, of tensors."""

IN_PLACE = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "addcmul", "addcdiv", "relu", "sigmoid",
    "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "lerp.Scalar", "sqrt", "neg",
    "exp", "reciprocal", "tanh", "add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar",
    "masked_fill.Scalar", "elu",
)  # fmt: skip
"""Those that torch has in place as well."""


ASIDE = ("alpha", "value", "condition", "mask")
"""Arguments that have no part in the type that is computed in."""


def number_of(value: Any) -> Any:
    """A number, or what a tensor of the CPU with a single one holds; else None."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
        found = value.item()
        return None if isinstance(found, complex) else found
    return None


def is_refused(operator: Any, values: Sequence[Any], alpha: Any = None) -> bool:
    """Whether torch refuses types that an expression would take; it says so itself."""
    if isinstance(alpha, bool):
        return True
    if isinstance(alpha, float) and not any(
        one.is_floating_point() if isinstance(one, torch.Tensor) else isinstance(one, float)
        for one in values
    ):
        return True
    return "sub" in operator.name() and any(
        one.dtype is torch.bool if isinstance(one, torch.Tensor) else isinstance(one, bool)
        for one in values
    )


def register(operator: Any, expression: str, kind: str, *, in_place: bool = False) -> None:
    """Have the operator computed by the expression: its result is "same", "float" or "bool".

    As "floats", it is for floating numbers alone.
    """
    arguments = operator._schema.arguments
    names = [one.name for one in arguments]
    defaults = {one.name: one.default_value for one in arguments if one.has_default_value()}
    used = set(re.findall("[A-Z][A-Z0-9_]+", expression))

    @kernel(operator)
    def compute(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        tensors: list[tuple[str, OclTensor]] = []
        scalars: list[tuple[str, Any]] = []
        values = []
        for name in names:
            if name.upper() not in used:
                continue
            value = given[name]
            if isinstance(value, OclTensor):
                tensors.append((name.upper(), value))
            elif (number := number_of(value)) is not None:
                scalars.append((name.upper(), number))
            else:
                return NotImplemented
            if name not in ASIDE:
                values.append(value)
        if is_refused(operator, values, given.get("alpha")):
            return NotImplemented
        out = given["self"] if in_place else None
        if in_place and not isinstance(out, OclTensor):
            return NotImplemented
        return computed(expression, kind, out, tensors, scalars, promoted(values))


def computed(
    expression: str,
    kind: str,
    out: OclTensor | None,
    tensors: list[tuple[str, OclTensor]],
    scalars: list[tuple[str, Any]],
    computes: torch.dtype,
) -> Any:
    """What the expression gives, in a new tensor or in `out`."""
    device = tensors[0][1].memory.device
    if kind == "floats" and not all(one.is_floating_point() for _, one in tensors):
        return NotImplemented
    if kind.startswith("float") and not computes.is_floating_point:
        if kind == "floats":
            return NotImplemented
        computes = torch.get_default_dtype()
    decided = _decided(
        kind,
        device,
        None if out is None else (out.dtype, out.size(), out.stride()),
        tuple([(one.dtype, one.size(), one.stride()) for _, one in tensors]),
        computes,
    )
    if decided is None:
        return NotImplemented
    result, size, stride = decided
    for _, one in tensors:
        if one.memory.device is not device or (out is not None and is_partial_alias(out, one)):
            return NotImplemented
    if not all(can_represent(computes, value) for _, value in scalars):
        return NotImplemented
    if out is None:
        out = empty(device.index, size, stride, result)
    run(
        expression, out, tensors, [(name, computes, value) for name, value in scalars],
        computes=computes,
    )  # fmt: skip
    return out


@lru_cache(maxsize=1 << 14)
def _decided(
    kind: str,
    device: Device,
    out: tuple[torch.dtype, Any, Any] | None,
    forms: tuple[tuple[torch.dtype, Any, Any], ...],
    computes: torch.dtype,
) -> tuple[torch.dtype, Any, Any] | None:
    """The result's type, size and strides; None where the CPU must."""
    result = torch.bool if kind == "bool" else computes
    size = broadcast([size for _, size, _ in forms])
    if size is None or (computes is torch.bool and kind != "bool"):
        return None
    if out is not None:
        result = out[0]
        if not torch.can_cast(computes, result) or size != list(out[1]):
            return None
        if any(n > 1 and not step for n, step in zip(out[1], out[2], strict=True)):
            return None  # an element would be written to more than once: torch will say so
    if not are_supported(device, computes, result, *(dtype for dtype, _, _ in forms)):
        return None
    fitting = (own for _, other, own in forms if list(other) == size and is_dense(other, own))
    return result, size, next(fitting, contiguous(size))


def promoted(values: list[Any]) -> torch.dtype:
    """The type that torch gives all of them together."""
    return _promoted(
        torch.get_default_dtype(),
        tuple(
            (value.dtype, min(value.dim(), 1)) if isinstance(value, torch.Tensor) else type(value)
            for value in values
        ),
    )


@cache
def _promoted(default: torch.dtype, kinds: tuple[Any, ...]) -> torch.dtype:
    """As torch: a tensor with dimensions decides before one without, and that before a number,
    unless the latter is of another category, as a floating number among integers."""
    in_dims: torch.dtype | None = None
    in_zero: torch.dtype | None = None
    in_numbers: torch.dtype | None = None
    numbers = {bool: torch.bool, int: torch.int64, float: default}
    for kind in kinds:
        if not isinstance(kind, tuple):
            in_numbers = _either(in_numbers, numbers[kind])
        elif kind[1]:
            in_dims = _either(in_dims, kind[0])
        else:
            in_zero = _either(in_zero, kind[0])
    found = _over(in_dims, _over(in_zero, in_numbers))
    assert found is not None
    return found


def _either(one: torch.dtype | None, other: torch.dtype) -> torch.dtype:
    return other if one is None else torch.promote_types(one, other)


def _over(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """The first, unless the second is of a higher category: bool, integer, floating, complex."""
    if first is None or second is None:
        return first if second is None else second
    if first.is_complex or (first.is_floating_point and not second.is_complex):
        return first
    if first is torch.bool or second.is_floating_point or second.is_complex:
        return torch.promote_types(first, second)
    return first


def _overload(name: str, suffix: str = "") -> Any:
    """Torch's, of "add.Tensor", or of "relu" for its default."""
    base, _, which = name.partition(".")
    return getattr(getattr(aten, base + suffix), which or "default")


for _name in ("add", "sub", "mul"):
    SAME[f"{_name}.Scalar"] = SAME[f"{_name}.Tensor"]
for _name in ("ScalarSelf", "ScalarOther"):
    SAME[f"where.{_name}"] = SAME["where.self"]
FLOATING["div.Scalar"] = FLOATING["div.Tensor"]

for _table, _kind in ((SAME, "same"), (FLOATING, "float"), (OF_FLOATS, "floats")):
    for _name, _expression in _table.items():
        register(_overload(_name), _expression, _kind)
        if _name in IN_PLACE:
            register(_overload(_name, "_"), _expression, _kind, in_place=True)
for _name, _expression in COMPARED.items():
    for _which in ("Tensor", "Scalar"):
        register(_overload(f"{_name}.{_which}"), _expression, "bool")
for _name, _expression in TRUE.items():
    register(_overload(_name), _expression, "bool")
