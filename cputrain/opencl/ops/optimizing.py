"""What optimizers do: the same for each of many tensors, and whole steps."""

from __future__ import annotations

import re
from typing import Any

import torch

from cputrain.opencl.foreach import are_uniform, run_each
from cputrain.opencl.ops.factories import like
from cputrain.opencl.ops.pointwise import FLOATING, OF_FLOATS, SAME, is_refused, number_of
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

LISTED = {
    "add": SAME["add.Tensor"], "sub": SAME["sub.Tensor"], "mul": SAME["mul.Tensor"],
    "div": FLOATING["div.Tensor"], "maximum": SAME["maximum"], "minimum": SAME["minimum"],
    "clamp_min": SAME["maximum"], "clamp_max": SAME["minimum"], "neg": SAME["neg"],
    "abs": SAME["abs"], "sqrt": FLOATING["sqrt"], "rsqrt": FLOATING["rsqrt"],
    "reciprocal": FLOATING["reciprocal"], "exp": FLOATING["exp"], "addcmul": SAME["addcmul"],
    "addcdiv": OF_FLOATS["addcdiv"], "lerp": OF_FLOATS["lerp.Scalar"],
    "pow": OF_FLOATS["pow.Tensor_Scalar"], "zero": "0", "sigmoid": FLOATING["sigmoid"],
    "tanh": FLOATING["tanh"],
}  # fmt: skip
"""What torch has for lists, by the name after "_foreach_"."""

ROLES = {
    "self": "SELF", "other": "OTHER", "scalar": "OTHER", "scalars": "OTHER", "alpha": "ALPHA",
    "tensor1": "TENSOR1", "tensor2": "TENSOR2", "value": "VALUE", "tensors1": "END",
    "weight": "WEIGHT", "weights": "WEIGHT", "exponent": "EXPONENT",
}  # fmt: skip
"""What an argument is in the expression."""


def _register(operator: Any, expression: str, *, in_place: bool) -> None:
    arguments = operator._schema.arguments
    names = [one.name for one in arguments]
    defaults = {one.name: one.default_value for one in arguments if one.has_default_value()}
    used = set(re.findall("[A-Z][A-Z0-9_]+", expression))

    def role_of(argument: str) -> str:
        role = ROLES[argument]
        if role == "OTHER" and role not in used:  # of addcmul and its like
            return next(one for one in ("VALUE", "EXPONENT", "WEIGHT") if one in used)
        return role

    roles = {one: role_of(one) for one in names}

    @kernel(operator)
    def compute(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        lists: dict[str, Sequence[OclTensor]] = {}
        scalars: dict[str, float] = {}
        own: dict[str, Sequence[float]] = {}
        single: list[str] = []
        for argument in names:
            role, value = roles[argument], given[argument]
            if role not in used and role != "SELF":
                continue
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                lists[role] = value
            elif isinstance(value, (list, tuple)):
                own[role] = value
            elif isinstance(value, OclTensor):
                lists[role] = [value] * len(given["self"])
                single.append(role)
            elif (number := number_of(value)) is not None:
                scalars[role] = number
            else:
                return NotImplemented
        if "ALPHA" in used and "alpha" not in names:
            scalars["ALPHA"] = 1
        if "SELF" not in lists or not are_uniform(lists, single):
            return NotImplemented
        every = [*scalars.values(), *(one for each in own.values() for one in each)]
        if any(isinstance(one, complex) for one in every):
            return NotImplemented
        if is_refused(operator, [*lists["SELF"], *every], given.get("alpha")):
            return NotImplemented
        out = lists["SELF"] if in_place else [like(one, None, None) for one in lists["SELF"]]
        run_each(f"OUT = {expression};", {"OUT": out, **lists}, scalars, own, single)
        return None if in_place else list(out)


for _name, _expression in LISTED.items():
    for _suffix in ("", "_"):
        _packet = getattr(aten, f"_foreach_{_name}{_suffix}")
        for _overload in _packet.overloads():
            _operator = getattr(_packet, _overload)
            if not {one.name for one in _operator._schema.arguments} - ROLES.keys():
                _register(_operator, _expression, in_place=bool(_suffix))


@kernel(aten._foreach_norm.Scalar)
def norms(self: Sequence[Any], ord: Any = 2, dtype: Any = None) -> Any:  # noqa: A002
    """Return the norm of each tensor."""
    if dtype is not None or not all(isinstance(one, OclTensor) for one in self):
        return NotImplemented
    return [torch.linalg.vector_norm(one, ord) for one in self]


GRADIENT = "T g = MAXIMIZE != 0 ? -GRAD : GRAD; "


@kernel(aten._fused_sgd_.default)
def fused_sgd(
    self: Any, grads: Any, momentum_buffer_list: Any, *, weight_decay: float, momentum: float,
    lr: float, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Any = None, found_inf: Any = None,
) -> Any:  # fmt: skip
    """A step of SGD."""
    lists = {"WEIGHT": self, "GRAD": grads}
    has_momentum = momentum != 0 and len(momentum_buffer_list) > 0
    if has_momentum:
        lists["BUFFER"] = momentum_buffer_list
    if grad_scale is not None or found_inf is not None or not are_uniform(lists):
        return NotImplemented
    body = GRADIENT + "g += DECAY * WEIGHT; "
    if has_momentum:
        body += "const T b = IS_FIRST != 0 ? g : MOMENTUM * BUFFER + (1 - DAMPENING) * g; "
        body += "BUFFER = b; g = NESTEROV != 0 ? g + MOMENTUM * b : b; "
    run_each(
        body + "WEIGHT -= LR * g;", lists,
        {"LR": lr, "DECAY": weight_decay, "MOMENTUM": momentum, "DAMPENING": dampening,
         "NESTEROV": nesterov, "MAXIMIZE": maximize, "IS_FIRST": is_first_step},
    )  # fmt: skip
    return None


def _adam(*, decoupled: bool) -> Any:
    def step(
        self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
        state_steps: Any, *, lr: float, beta1: float, beta2: float, weight_decay: float,
        eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
    ) -> Any:  # fmt: skip
        """A step of Adam."""
        lists = {"WEIGHT": self, "GRAD": grads, "MEAN": exp_avgs, "SQUARE": exp_avg_sqs}
        if amsgrad:
            lists["MOST"] = max_exp_avg_sqs
        lists["STEP"] = state_steps
        if grad_scale is not None or found_inf is not None or not are_uniform(lists, ["STEP"]):
            return NotImplemented
        body = GRADIENT
        body += "WEIGHT *= 1 - LR * DECAY; " if decoupled else "g += DECAY * WEIGHT; "
        body += "const T m = MEAN + (1 - BETA1) * (g - MEAN); "
        body += "const T v = BETA2 * SQUARE + (1 - BETA2) * g * g; MEAN = m; SQUARE = v; "
        spread = "v"
        if amsgrad:
            body += "const T most = max(MOST, v); MOST = most; "
            spread = "most"
        body += f"const T spread = sqrt({spread}) / sqrt(1 - pow(BETA2, (T)STEP)) + EPS; "
        body += "WEIGHT -= LR / (1 - pow(BETA1, (T)STEP)) * m / spread;"
        run_each(
            body, lists,
            {"LR": lr, "BETA1": beta1, "BETA2": beta2, "DECAY": weight_decay, "EPS": eps,
             "MAXIMIZE": maximize},
            single=["STEP"],
        )  # fmt: skip
        return None

    return step


kernel(aten._fused_adam_.default)(_adam(decoupled=False))
kernel(aten._fused_adamw_.default)(_adam(decoupled=True))
