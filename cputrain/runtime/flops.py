"""Count the floating-point operations (FLOPs) of an operator call.

`torch.utils.flop_counter` is not sufficient: it multiplies the weight gradient of a grouped
convolution by the number of groups, counts products with padding, which kernels skip, ignores
causal masks, and has no formula for the CPU's attention and recurrent kernels. A count that is too
high would make an operator exceed the machine's peak FLOP/s. So a count is the number of
multiplications and additions that the result needs; a kernel may do more. Formulas of torch's
registry are used for operators without a formula in this module, such as a user's own.

A multiplication and an addition are two operations. Additions without a product, such as those of a
bias, are not counted.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    Arguments = Mapping[str, Any]
    Formula = Callable[[Arguments, Any], int]

COMPLEX_FACTOR = 4
"""FLOPs of a complex multiply-add divided by those of a real one: 8 / 2."""

GATES = {2: 4, 3: 3}
"""Gates of a recurrent layer by torch's number of its mode: LSTM and GRU; plain RNNs have one."""


def count_flops(
    torch: ModuleType, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> int:
    """Return the FLOPs that a call needs; 0 without a formula.

    Args:
        torch: The torch module.
        func: Operator overload that was called.
        args: Positional arguments.
        kwargs: Keyword arguments.
        result: Result of the call.
    """
    formula = FORMULAS.get(func._schema.name)
    if formula is None:
        from torch.utils.flop_counter import flop_registry

        registered = flop_registry.get(func._overloadpacket)
        return 0 if registered is None else int(registered(*args, **kwargs, out_val=result))
    arguments = bind(func, args, kwargs)
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    is_complex = any(tensor.is_complex() for tensor in tensors)
    return formula(arguments, result) * (COMPLEX_FACTOR if is_complex else 1)


def is_counted(name: str) -> bool:
    """Return whether this module has a formula for an operator, such as "mm"."""
    return name in COUNTED


def bind(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names in the operator's schema, with defaults."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            bound[argument.name] = args[position]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def _first(arguments: Arguments, *names: str) -> Any:
    """Return the first argument present among alternative names, which differ between schemas."""
    return next(arguments[name] for name in names if name in arguments)


def _product(*operands: str) -> Formula:
    """Return the formula of a product of matrices or vectors, by the names of its two operands."""
    left_name, right_name = operands

    def formula(arguments: Arguments, result: Any) -> int:
        left, right = arguments[left_name], arguments[right_name]
        if _is_sparse(left) and _is_sparse(right):
            return 0  # the count depends on the positions of their elements
        if _is_sparse(left):
            return 2 * _stored(left) * int(right.shape[-1] if right.dim() > 1 else 1)
        if _is_sparse(right):
            return 2 * _stored(right) * int(left.shape[-2])
        return 2 * int(result.numel()) * int(left.shape[-1])

    return formula


def _is_sparse(tensor: Any) -> bool:
    return "sparse" in str(tensor.layout)


def _stored(sparse: Any) -> int:
    """Return the number of stored elements of a sparse tensor."""
    values = sparse._values() if str(sparse.layout) == "torch.sparse_coo" else sparse.values()
    return int(values.numel())


def _summed_product(arguments: Arguments, _: Any) -> int:
    """Count addbmm, which sums the matrix products of a batch."""
    return 2 * int(arguments["batch1"].numel()) * int(arguments["batch2"].shape[-1])


def _dot(arguments: Arguments, _: Any) -> int:
    return 2 * int(arguments["self"].numel())


def _convolution(arguments: Arguments, result: Any) -> int:
    return 2 * _convolution_products(
        _first(arguments, "input", "self", "X").shape, _first(arguments, "weight", "W").shape,
        result.shape, arguments,
    )  # fmt: skip


def _transposed_convolution(arguments: Arguments, result: Any) -> int:
    return _convolution({**arguments, "transposed": True}, result)


def _convolution_gradients(arguments: Arguments, _: Any) -> int:
    """Count convolution_backward: each gradient has as many products as the forward pass."""
    num_gradients = sum(map(bool, arguments["output_mask"][:2]))
    return 2 * num_gradients * _convolution_products(
        arguments["input"].shape, arguments["weight"].shape, arguments["grad_output"].shape,
        arguments,
    )  # fmt: skip


def _convolution_products(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    output_shape: Sequence[int],
    arguments: Arguments,
) -> int:
    """Return the products of input and weight elements, without those of padding."""
    num_dims = len(weight_shape) - 2
    # a transposed convolution is the input gradient of a convolution: output and input swap
    is_transposed = arguments.get("transposed", False)
    positions, image = (input_shape, output_shape) if is_transposed else (output_shape, input_shape)
    batch = input_shape[0] if len(input_shape) == num_dims + 2 else 1
    options = (
        _per_dimension(arguments.get(name), num_dims) for name in ("stride", "padding", "dilation")
    )
    num_pairs = prod(
        _count_pairs(int(num), int(size), int(kernel), *geometry)
        for num, size, kernel, geometry in zip(
            positions[-num_dims:], image[-num_dims:], weight_shape[2:], zip(*options, strict=True),
            strict=True,
        )
    ) if num_dims else 1  # fmt: skip
    return int(batch) * int(weight_shape[0]) * int(weight_shape[1]) * num_pairs


def _per_dimension(value: Any, num_dims: int) -> tuple[int | None, ...]:
    """Return the value of each dimension; a single value applies to all, None to none."""
    if value is None:
        return (None,) * num_dims
    values = tuple(map(int, value)) if isinstance(value, (list, tuple)) else (int(value),)
    return values * num_dims if len(values) == 1 else values


@lru_cache(maxsize=4096)
def _count_pairs(
    num_positions: int,
    size: int,
    kernel: int,
    stride: int | None,
    padding: int | None,
    dilation: int | None,
) -> int:
    """Return the pairs of output position and kernel tap inside the image, in one dimension."""
    stride, padding, dilation = stride or 1, padding or 0, dilation or 1
    total = 0
    for tap in range(kernel):
        offset = tap * dilation - padding
        first = max(0, -(offset // stride))  # rounded up
        last = min(num_positions - 1, (size - 1 - offset) // stride)
        total += max(0, last - first + 1)
    return total


def _attention(arguments: Arguments, _: Any) -> int:
    """Count attention: the scores, and their product with the values."""
    query, value = arguments["query"], arguments["value"]
    return 2 * _scores(arguments) * (int(query.shape[-1]) + int(value.shape[-1]))


def _attention_gradients(arguments: Arguments, _: Any) -> int:
    """Count attention's backward pass: the scores again, and four products for gradients."""
    query, value = arguments["query"], arguments["value"]
    return 2 * _scores(arguments) * (3 * int(query.shape[-1]) + 2 * int(value.shape[-1]))


def _scores(arguments: Arguments) -> int:
    """Return the pairs of query and key of all heads and samples, without causally masked ones."""
    *heads, num_queries, _ = map(int, arguments["query"].shape)
    num_keys = int(arguments["key"].shape[-2])
    if not arguments["is_causal"]:
        return prod(heads) * num_queries * num_keys
    # query i attends to keys 0 to i, as far as there are keys
    num_rows = min(num_queries, num_keys)
    return prod(heads) * (num_rows * (num_rows + 1) // 2 + (num_queries - num_rows) * num_keys)


def _recurrent(arguments: Arguments, _: Any) -> int:
    """Count a recurrent layer: at each time step, products with the input and with the state."""
    num_steps, batch, features = map(int, arguments["input"].shape)
    hidden = int(arguments["hidden_size"])
    gate_size = GATES.get(arguments["mode"], 1) * hidden
    return 2 * num_steps * batch * gate_size * (features + hidden)


def _recurrent_gradients(arguments: Arguments, result: Any) -> int:
    """Count a recurrent layer's backward pass: gradients of input and state, and of the weights."""
    return 2 * _recurrent(arguments, result)


def _linear(arguments: Arguments, result: Any) -> int:
    return 2 * int(result.numel()) * int(_first(arguments, "self", "X").shape[-1])


FORMULAS: dict[str, Formula] = {
    "aten::mm": _product("self", "mat2"),
    "aten::bmm": _product("self", "mat2"),
    "aten::mv": _product("self", "vec"),
    "aten::addmm": _product("mat1", "mat2"),
    "aten::addmm_": _product("mat1", "mat2"),
    "aten::_addmm_activation": _product("mat1", "mat2"),
    "aten::addmv": _product("mat", "vec"),
    "aten::addmv_": _product("mat", "vec"),
    "aten::baddbmm": _product("batch1", "batch2"),
    "aten::baddbmm_": _product("batch1", "batch2"),
    "aten::addbmm": _summed_product,
    "aten::addbmm_": _summed_product,
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::_int_mm": _product("self", "mat2"),
    "aten::_scaled_mm": _product("self", "mat2"),
    "aten::_weight_int8pack_mm": _linear,
    "aten::_weight_int4pack_mm_for_cpu": _linear,
    "aten::mkldnn_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::mkldnn_convolution": _convolution,
    "aten::_slow_conv2d_forward": _convolution,
    "aten::slow_conv3d_forward": _convolution,
    "aten::slow_conv_dilated2d": _convolution,
    "aten::slow_conv_dilated3d": _convolution,
    "aten::slow_conv_transpose2d": _transposed_convolution,
    "aten::slow_conv_transpose3d": _transposed_convolution,
    "mkldnn::_convolution_pointwise": _convolution,
    "aten::convolution_backward": _convolution_gradients,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradients,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": _recurrent_gradients,
}

COUNTED = frozenset(name.partition("::")[2] for name in FORMULAS)
"""Names without namespace of the operators in `FORMULAS`."""
