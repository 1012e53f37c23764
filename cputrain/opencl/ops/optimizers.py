"""Foreach operators and fused optimizer steps, over lists of tensors."""

from __future__ import annotations

import re
from typing import Any

import torch

from cputrain.opencl.foreach import are_uniform, run_each
from cputrain.opencl.ops.factories import like
from cputrain.opencl.ops.pointwise import (
    FLOAT_ONLY,
    FLOATING,
    SAME_DTYPE,
    is_rejected_by_torch,
    scalar_of,
    schema_arguments,
)
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

FOREACH_EXPRESSIONS = {
    "add": SAME_DTYPE["add.Tensor"], "sub": SAME_DTYPE["sub.Tensor"],
    "mul": SAME_DTYPE["mul.Tensor"], "div": FLOATING["div.Tensor"],
    "maximum": SAME_DTYPE["maximum"], "minimum": SAME_DTYPE["minimum"],
    "clamp_min": SAME_DTYPE["maximum"], "clamp_max": SAME_DTYPE["minimum"],
    "neg": SAME_DTYPE["neg"], "abs": SAME_DTYPE["abs"], "sqrt": FLOATING["sqrt"],
    "rsqrt": FLOATING["rsqrt"], "reciprocal": FLOATING["reciprocal"], "exp": FLOATING["exp"],
    "addcmul": SAME_DTYPE["addcmul"], "addcdiv": FLOAT_ONLY["addcdiv"],
    "lerp": FLOAT_ONLY["lerp.Scalar"], "pow": FLOAT_ONLY["pow.Tensor_Scalar"], "zero": "0",
    "sigmoid": FLOATING["sigmoid"], "tanh": FLOATING["tanh"],
}  # fmt: skip
"""Expressions of foreach operators, by the name after "_foreach_"."""

ROLES = {
    "self": "SELF", "other": "OTHER", "scalar": "OTHER", "scalars": "OTHER", "alpha": "ALPHA",
    "tensor1": "TENSOR1", "tensor2": "TENSOR2", "value": "VALUE", "tensors1": "END",
    "weight": "WEIGHT", "weights": "WEIGHT", "exponent": "EXPONENT",
}  # fmt: skip
"""Name in the expression, by the argument's name in torch's schema."""


def _register(operator: Any, expression: str, *, in_place: bool) -> None:
    """Register an expression as the kernel of a foreach operator."""
    names, defaults = schema_arguments(operator)
    used = set(re.findall("[A-Z][A-Z0-9_]+", expression))

    def role_of(argument: str) -> str:
        role = ROLES[argument]
        if role == "OTHER" and role not in used:  # (as in addcmul)
            return next(name for name in ("VALUE", "EXPONENT", "WEIGHT") if name in used)
        return role

    roles = {name: role_of(name) for name in names}

    @kernel(operator)
    def compute(*args: Any, **kwargs: Any) -> Any:
        arguments_by_name = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        lists: dict[str, Sequence[OclTensor]] = {}
        scalars: dict[str, float] = {}
        per_tensor: dict[str, Sequence[float]] = {}
        single: list[str] = []
        for argument in names:
            role, value = roles[argument], arguments_by_name[argument]
            if role not in used and role != "SELF":
                continue
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                lists[role] = value
                is_same = role != "SELF" and all(each is value[0] for each in value)
                if _are_numbers(value) and (is_same or not _are_numbers(arguments_by_name["self"])):
                    single.append(role)
            elif isinstance(value, (list, tuple)):
                per_tensor[role] = value
            elif isinstance(value, OclTensor):
                lists[role] = [value] * len(arguments_by_name["self"])
                single.append(role)
            elif (number := scalar_of(value)) is not None:
                scalars[role] = number
            else:
                return NotImplemented
        if "ALPHA" in used and "alpha" not in names:
            scalars["ALPHA"] = 1
        if "SELF" not in lists or not are_uniform(lists, single):
            return NotImplemented
        scalar_values = [
            *scalars.values(),
            *(value for values in per_tensor.values() for value in values),
        ]
        if any(isinstance(value, complex) for value in scalar_values):
            return NotImplemented
        if is_rejected_by_torch(
            operator, [*lists["SELF"], *scalar_values], arguments_by_name.get("alpha")
        ):
            return NotImplemented
        out = lists["SELF"] if in_place else [like(tensor, None, None) for tensor in lists["SELF"]]
        run_each(f"OUT = {expression};", {"OUT": out, **lists}, scalars, per_tensor, single)
        return None if in_place else list(out)


def _are_numbers(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether all tensors have no dimension and one dtype."""
    return not any(map(torch.Tensor.dim, tensors)) and len({each.dtype for each in tensors}) == 1


for _name, _expression in FOREACH_EXPRESSIONS.items():
    for _suffix in ("", "_"):
        _packet = getattr(aten, f"_foreach_{_name}{_suffix}")
        for _overload in _packet.overloads():
            _operator = getattr(_packet, _overload)
            if not {_arg.name for _arg in _operator._schema.arguments} - ROLES.keys():
                _register(_operator, _expression, in_place=bool(_suffix))


@kernel(aten._foreach_norm.Scalar)
def norms(self: Sequence[Any], ord: Any = 2, dtype: Any = None) -> Any:  # noqa: A002
    """Return the norm of each tensor."""
    if dtype is not None or not all(isinstance(tensor, OclTensor) for tensor in self):
        return NotImplemented
    return [torch.linalg.vector_norm(tensor, ord) for tensor in self]


@kernel(aten._foreach_pow.ScalarAndTensor)
def powers(self: Any, exponent: Sequence[Any]) -> Any:
    """Return a number to the power of each tensor."""
    base = scalar_of(self)
    if base is None or isinstance(base, complex) or not are_uniform({"EXPONENT": exponent}):
        return NotImplemented
    out = [like(tensor, None, None) for tensor in exponent]
    run_each("OUT = pow(BASE, EXPONENT);", {"OUT": out, "EXPONENT": exponent}, {"BASE": base})
    return out


@kernel(aten._amp_foreach_non_finite_check_and_unscale_.default)
def unscale(self: Any, found_inf: Any, inv_scale: Any) -> Any:
    """Divide gradients by a GradScaler's scale; note whether any of them is infinite or NaN."""
    lists = {"GRAD": self, "OVERFLOW": [found_inf] * len(self), "FACTOR": [inv_scale] * len(self)}
    if not are_uniform(lists, ["OVERFLOW", "FACTOR"]):
        return NotImplemented
    run_each(
        "if (!isfinite(GRAD)) p_OVERFLOW[0] = 1; GRAD = FACTOR == 1 ? GRAD : GRAD * FACTOR;", lists,
        single=["OVERFLOW", "FACTOR"],
    )  # fmt: skip
    return None


@kernel(aten._amp_update_scale_.default)
def update_scale(
    self: Any, growth_tracker: Any, found_inf: Any, scale_growth_factor: float,
    scale_backoff_factor: float, growth_interval: int,
) -> Any:  # fmt: skip
    """Shrink a GradScaler's scale after an overflow; let it grow after many steps without one."""
    lists = {"SCALE": [self], "TRACKER": [growth_tracker], "OVERFLOW": [found_inf]}
    if not are_uniform(lists, ["TRACKER", "OVERFLOW"]):
        return NotImplemented
    run_each(
        "const bool grows = OVERFLOW == 0 && TRACKER + 1 == INTERVAL; "
        "const T scale = OVERFLOW != 0 ? SCALE * BACKOFF : grows ? SCALE * GROWTH : SCALE; "
        "SCALE = isfinite(scale) ? scale : SCALE; "
        "TRACKER = OVERFLOW != 0 || grows ? 0 : TRACKER + 1;", lists,
        {"GROWTH": scale_growth_factor, "BACKOFF": scale_backoff_factor,
         "INTERVAL": growth_interval},
        single=["TRACKER", "OVERFLOW"],
    )  # fmt: skip
    return self


def _add_scaler(lists: dict[str, Any], grad_scale: Any, found_inf: Any) -> tuple[str, list[str]]:
    """Add what a GradScaler passes to a fused optimizer, where it does, to the lists of its step.

    Returns:
        Statements that unscale a gradient or leave out the step, and the names of the lists.
    """
    statements, names = "", []
    for name, value, statement in (
        ("OVERFLOW", found_inf, "if (OVERFLOW != 0) return; "),
        ("LOSS_SCALE", grad_scale, "GRAD /= LOSS_SCALE; "),
    ):
        if value is not None:
            lists[name] = [value] * len(lists["WEIGHT"])
            statements += statement
            names.append(name)
    return statements, names


GRADIENT = "T g = MAXIMIZE != 0 ? -GRAD : GRAD; "
"""OpenCL statement that defines g, the gradient to descend along."""


@kernel(aten._fused_sgd_.default)
def fused_sgd(
    self: Any, grads: Any, momentum_buffer_list: Any, *, weight_decay: float, momentum: float,
    lr: float, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Any = None, found_inf: Any = None,
) -> Any:  # fmt: skip
    """Update parameters by a step of SGD."""
    lists = {"WEIGHT": self, "GRAD": grads}
    has_momentum = momentum != 0 and len(momentum_buffer_list) > 0
    if has_momentum:
        lists["BUFFER"] = momentum_buffer_list
    statements, single = _add_scaler(lists, grad_scale, found_inf)
    if not are_uniform(lists, single):
        return NotImplemented
    body = statements + GRADIENT + "g += DECAY * WEIGHT; "
    if has_momentum:
        body += "const T b = IS_FIRST != 0 ? g : MOMENTUM * BUFFER + (1 - DAMPENING) * g; "
        body += "BUFFER = b; g = NESTEROV != 0 ? g + MOMENTUM * b : b; "
    run_each(
        body + "WEIGHT -= LR * g;", lists,
        {"LR": lr, "DECAY": weight_decay, "MOMENTUM": momentum, "DAMPENING": dampening,
         "NESTEROV": nesterov, "MAXIMIZE": maximize, "IS_FIRST": is_first_step},
        single=single,
    )  # fmt: skip
    return None


def _adam(*, decoupled: bool) -> Any:
    """Return the kernel of Adam, or of AdamW, whose weight decay is decoupled."""

    def step(
        self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
        state_steps: Any, *, lr: float, beta1: float, beta2: float, weight_decay: float,
        eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
    ) -> Any:  # fmt: skip
        """Update parameters by a step of Adam or AdamW."""
        lists = {"WEIGHT": self, "GRAD": grads, "MEAN": exp_avgs, "SQUARE": exp_avg_sqs}
        if amsgrad:
            lists["MAX_SQUARE"] = max_exp_avg_sqs
        lists["STEP"] = state_steps
        statements, single = _add_scaler(lists, grad_scale, found_inf)
        single.append("STEP")
        if not are_uniform(lists, single):
            return NotImplemented
        body = statements + GRADIENT
        body += "WEIGHT *= 1 - LR * DECAY; " if decoupled else "g += DECAY * WEIGHT; "
        body += "const T m = MEAN + (1 - BETA1) * (g - MEAN); "
        body += "const T v = BETA2 * SQUARE + (1 - BETA2) * g * g; MEAN = m; SQUARE = v; "
        variance = "v"
        if amsgrad:
            body += "const T largest = max(MAX_SQUARE, v); MAX_SQUARE = largest; "
            variance = "largest"
        body += f"const T denominator = sqrt({variance}) / sqrt(1 - pow(BETA2, (T)STEP)) + EPS; "
        body += "WEIGHT -= LR / (1 - pow(BETA1, (T)STEP)) * m / denominator;"
        run_each(
            body, lists,
            {"LR": lr, "BETA1": beta1, "BETA2": beta2, "DECAY": weight_decay, "EPS": eps,
             "MAXIMIZE": maximize},
            single=single,
        )  # fmt: skip
        return None

    return step


kernel(aten._fused_adam_.default)(_adam(decoupled=False))
kernel(aten._fused_adamw_.default)(_adam(decoupled=True))
