"""`torch.autocast("ocl")`: casts of arguments, by the lists of torch's CUDA autocast.

https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import weakref
from functools import wraps

import torch

from cputrain.opencl.graphs.capture import is_capturing
from cputrain.opencl.tensor import OclTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Rule = Callable[[tuple[Any, ...]], torch.dtype | None]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes that autocast may be asked for; arguments of other dtypes are not cast."""

LOWER_PRECISION = (
    "_convolution", "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "conv_tbc", "linear", "matmul", "mm", "mv",
    "addmm", "addmv", "addr", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "linalg_vecdot", "prelu", "scaled_dot_product_attention", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
"""Operators that compute in autocast's dtype."""

FLOAT32 = (
    "acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1", "log", "log10", "log1p",
    "log2", "reciprocal", "rsqrt", "softplus", "pow.Scalar", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "layer_norm", "native_layer_norm", "group_norm", "rms_norm",
    "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "norm.Scalar", "norm.ScalarOpt_dim",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "cosine_similarity",
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy_loss",
    "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "nll_loss2d", "nll_loss_nd",
    "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss", "cdist",
    "dist", "pdist", "renorm", "logsumexp", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "upsample_bicubic2d", "softmax.int", "log_softmax.int", "prod", "prod.dim_int", "cumprod",
    "cumsum", "sum", "sum.dim_IntList",
)  # fmt: skip
"""Operators that compute in float32, unless their argument `dtype` says another."""

WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "scatter_add", "tensordot", "cat", "stack",
)  # fmt: skip
"""Operators that compute in the widest dtype of their arguments."""


def register(library: Any, name: str) -> None:
    """Register the casts of a device type, and its errors."""
    autocast = _Autocast(name)
    for operators, rule in (
        (LOWER_PRECISION, lambda _: torch.get_autocast_dtype(name)),
        (FLOAT32, lambda _: torch.float32),
        (WIDEST, _widest),
    ):
        for operator in operators:
            autocast.register(library, operator, rule)
    library.impl("binary_cross_entropy", _raise_for_binary_cross_entropy, "AutocastPrivateUse1")
    namespace: Any = torch
    namespace.clear_autocast_cache = autocast.clear_after(namespace.clear_autocast_cache)


class _Autocast:
    """Casts of one device type, with the casts of parameters that a context made so far."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._casts: dict[tuple[int, torch.dtype], tuple[weakref.ref[Any], int, Any]] = {}

    def register(self, library: Any, operator: str, rule: Rule) -> None:
        """Have an operator's arguments cast to the dtype that `rule` returns for them."""
        base, _, suffix = operator.partition(".")
        overload = getattr(getattr(torch.ops.aten, base), suffix or "default")
        dispatch_key: Any = torch._C.DispatchKey
        keys = torch._C.DispatchKeySet(dispatch_key.AutocastPrivateUse1)

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                dtype = None if kwargs.get("dtype") is not None else rule((args, kwargs))
                if dtype is None:
                    return overload(*args, **kwargs)
                return overload(
                    *[self._cast(value, dtype) for value in args],
                    **{key: self._cast(value, dtype) for key, value in kwargs.items()},
                )

        library.impl(operator, call, "AutocastPrivateUse1")

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._cast(each, dtype) for each in value]
        if not _is_castable(value) or value.dtype is dtype:
            return value
        is_parameter = value.is_leaf and value.requires_grad and value.dtype is torch.float32
        # (a captured graph casts parameters in each replay)
        if not is_parameter or not torch.is_autocast_cache_enabled() or is_capturing():
            return value.to(dtype)
        key = (id(value), dtype)
        entry = self._casts.get(key)
        if entry is not None and entry[1] == value._version and entry[0]() is value:
            return entry[2]
        cast = value.to(dtype)
        if torch.is_grad_enabled():  # (else the next call with gradients would have none)
            self._casts[key] = weakref.ref(value), value._version, cast
        return cast

    def clear_after(self, original: Callable[[], None]) -> Callable[[], None]:
        """Wrap torch's function that forgets casts, so that these are forgotten as well."""

        @wraps(original)
        def clear_autocast_cache() -> None:
            self._casts.clear()
            original()

        return clear_autocast_cache


def _is_castable(value: Any) -> bool:
    return isinstance(value, OclTensor) and value.dtype in DTYPES


def _widest(arguments: Any) -> torch.dtype | None:
    """Return the widest dtype of tensors that may be cast; None if there are none."""
    widest: torch.dtype | None = None
    for value in torch.utils._pytree.tree_leaves(arguments):
        if _is_castable(value):
            widest = value.dtype if widest is None else torch.promote_types(widest, value.dtype)
    return widest


def _raise_for_binary_cross_entropy(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss cannot run under autocast: "
        "in float16 their gradients overflow. Use binary_cross_entropy_with_logits or "
        "BCEWithLogitsLoss, without a sigmoid before it."
    )
