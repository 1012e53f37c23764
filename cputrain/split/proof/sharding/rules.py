"""Table of sharding rules by operator name."""

from __future__ import annotations

from functools import partial

import torch

from cputrain.split.proof.sharding.elementwise import (
    COPIES,
    arange,
    as_complex,
    factory,
    only_replicated,
    pointwise,
    table_lookup,
)
from cputrain.split.proof.sharding.indexing import (
    cdist,
    concatenate,
    embedding,
    embedding_bag,
    gather,
    index,
    index_fill,
    index_select,
)
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    OperatorCall,
)
from cputrain.split.proof.sharding.products import (
    attention,
    batch_norm,
    convolution,
    cudnn_recurrent,
    first_dim,
    group_norm,
    layer_norm,
    linear,
    matmul,
    matrix_vector,
    recurrent,
)
from cputrain.split.proof.sharding.reductions import (
    along,
    class_loss,
    loss,
    pad,
    reduce,
    reorder,
    trailing_dims,
)
from cputrain.split.proof.sharding.views import (
    as_strided,
    diagonal,
    expand,
    permute,
    repeat,
    select,
    slice_,
    split,
    squeeze,
    unbind,
    unfold,
    unsqueeze,
    view,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def stops(reason: str) -> Any:
    """Return a rule that refuses sharded arguments for this reason."""

    def rule(op: OperatorCall) -> list[Layout]:
        if any(op.layout(tensor) is not None for tensor in op.tensors):
            raise MixesSamples(reason)
        return only_replicated(op)

    return rule


def nothing(op: OperatorCall) -> list[Layout]:
    """Return replicated outputs, for operators that only check their arguments."""
    return op.same_layout_for_all(None)


POINTWISE = (
    *COPIES, "copy_", "fill_", "zero_", "_prelu_kernel", "_conj", "resolve_conj", "resolve_neg",
    "real", "imag", "logical_not", "nan_to_num", "lerp", "complex", "polar", "masked_fill",
    "detach_", "lift", "_neg_view", "clamp", "where", "threshold", "hardswish", "copy", "fill",
    "relu6", "log_sigmoid_forward", "requires_grad_", "square", "dropout", "feature_dropout",
)  # fmt: skip
"""Element-wise operators, besides those with `torch.Tag.pointwise`."""

REDUCTIONS = (
    "sum", "mean", "prod", "amax", "amin", "any", "all", "max", "min", "median", "nanmedian",
    "mode", "kthvalue", "argmax", "argmin", "norm", "linalg_vector_norm", "var", "std", "var_mean",
    "std_mean", "logsumexp", "count_nonzero", "aminmax", "nansum", "nanmean",
)  # fmt: skip
"""Operators that reduce some or all dimensions."""

ALONG = (
    "_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum", "cumprod",
    "logcumsumexp", "cummax", "cummin", "_cummax_helper", "sort", "argsort", "topk", "glu",
    "linalg_cross",
)  # fmt: skip
"""Operators that keep the shape and work along one dimension."""

TRAILING = {
    **dict.fromkeys(("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d"), 1),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d",
         "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "mkldnn_max_pool2d",
         "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
         "max_pool2d", "adaptive_avg_pool2d", "tril", "triu", "linalg_inv_ex", "linalg_det",
         "_linalg_det", "linalg_cholesky_ex", "matrix_exp", "linalg_matrix_exp", "_linalg_svd",
         "_linalg_eigh", "linalg_qr", "_linalg_slogdet", "linalg_lu_factor_ex",
         "linalg_eig", "linalg_eigvals", "linalg_lu", "cholesky_inverse", "linalg_ldl_factor_ex"),
        2),
    **dict.fromkeys(
        ("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d",
         "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d",
         "pixel_shuffle", "pixel_unshuffle", "im2col", "native_channel_shuffle",
         "channel_shuffle"), 3),
    **dict.fromkeys(("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"), 1),
    "col2im": 2,
}  # fmt: skip
"""Number of trailing dimensions that an operator works on."""

FACTORIES = (
    "zeros", "ones", "full", "empty", "scalar_tensor", "new_zeros", "new_ones", "new_full",
    "new_empty", "zeros_like", "ones_like", "full_like", "empty_like", "empty_strided",
    "new_empty_strided", "empty_permuted",
)  # fmt: skip
"""Operators that create constants or uninitialised tensors."""

RULES: dict[str, Any] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(FACTORIES, factory),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten"), view),
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T", "swapaxes"), permute),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_chunk", "chunk",
                     "unsafe_split_with_sizes", "split_with_sizes_copy"), split),
    **dict.fromkeys(REDUCTIONS, reduce),
    **dict.fromkeys(ALONG, along),
    **{name: partial(trailing_dims, count=count) for name, count in TRAILING.items()},
    **dict.fromkeys(("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
                     "replication_pad1d", "replication_pad2d", "replication_pad3d"), pad),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "conv1d", "conv2d",
                     "conv3d", "convolution_overrideable", "_slow_conv2d_forward",
                     "slow_conv3d_forward", "_nnpack_spatial_convolution"), convolution),
    **dict.fromkeys(("flip", "roll"), reorder),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), gather),
    **dict.fromkeys(("index_add", "index_copy", "index_fill"), index_fill),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_unsafe_index_put",
                     "_index_put_impl_"), index),
    **dict.fromkeys(("cat", "stack", "_cat"), concatenate),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                     "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
                     "miopen_batch_norm"), batch_norm),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), layer_norm),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_cudnn_attention"), attention),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss",
                     "binary_cross_entropy"), loss),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), class_loss),
    **dict.fromkeys(("_cdist_forward",), cdist),
    **dict.fromkeys(("_local_scalar_dense", "equal", "is_nonzero", "item"),
                    stops("reads values of samples, by which the model may decide")),
    **dict.fromkeys(("nonzero", "masked_select", "unique_consecutive", "_unique2", "bincount",
                     "nonzero_static"),
                    stops("has a result whose size depends on values of the batch")),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), partial(along, verb="transforms")),
    **dict.fromkeys(("_assert_async", "_assert_tensor_metadata", "_assert_scalar",
                     "_linalg_check_errors"), nothing),
    **dict.fromkeys(("view_as_real", "view_as_complex"), as_complex),
    **dict.fromkeys(("bucketize", "searchsorted", "isin"), table_lookup),
    "arange": arange,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "expand": expand,
    "repeat": repeat,
    "select": select,
    "slice": slice_,
    "unbind": unbind,
    "unfold": unfold,
    "as_strided": as_strided,
    "diagonal": diagonal,
    "mm": partial(matmul, left_name="self", right_name="mat2"),
    "bmm": partial(matmul, left_name="self", right_name="mat2"),
    "addmm": partial(matmul, left_name="mat1", right_name="mat2", bias_name="self"),
    "baddbmm": partial(matmul, left_name="batch1", right_name="batch2", bias_name="self"),
    "mv": matrix_vector,
    "linear": linear,
    "native_group_norm": group_norm,
    "mkldnn_rnn_layer": recurrent,
    "_cudnn_rnn": cudnn_recurrent,
    "embedding": embedding,
    "_embedding_bag": embedding_bag,
    "index_select": index_select,
    "grid_sampler_2d": first_dim,
    "grid_sampler_3d": first_dim,
    "affine_grid_generator": first_dim,
}  # fmt: skip
"""Rule by operator name, without the overload and the underscore of in-place operators."""

SIZES = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "repeat", "slice", "arange",
    "split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "native_group_norm",
    "affine_grid_generator", "chunk", "unsafe_chunk", "as_strided", *FACTORIES,
})  # fmt: skip
"""Operators whose constants may depend on the batch size; their rules check them."""


SIZE_ARGUMENTS = frozenset({
    "size", "shape", "repeats", "start", "end", "split_size", "split_sizes", "stride", "N",
    "chunks",
})  # fmt: skip
"""Arguments of these operators that may grow in proportion to the batch size."""


def rule_of(func: Any) -> Any:
    """Return the rule of an operator; None if there is none."""
    name = base_name(func)
    rule = RULES.get(name)
    if rule is None and torch.Tag.pointwise in func.tags:
        return pointwise
    return rule


def base_name(func: Any) -> str:
    """Return an operator's name without namespace, overload and in-place underscore."""
    name: str = func._schema.name.rpartition("::")[2]
    if name in RULES:
        return name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
