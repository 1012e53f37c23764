"""Views: tensors in the same memory; their metadata is computed by torch on the meta device."""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import torch

from cputrain.opencl.tensor import OclTensor, extent, interned_meta, set_metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

aten = torch.ops.aten

LAZY = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
"""Lazy views (conjugate and negative bit), with the operators that compute them at once."""


IN_PLACE = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
"""In-place operators that change only metadata, with the views of the same metadata."""


def run_in_place_view(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of `IN_PLACE` and return its argument."""
    tensor: OclTensor = args[0]
    begin: Any = tensor.storage_offset()
    view = IN_PLACE[func]
    size, stride, *_ = _metadata(
        view, tensor.size(), tensor.stride(), begin, tensor.dtype, args[1:], kwargs
    )
    set_metadata(tensor, torch.empty(0, device="meta").as_strided(size, stride, begin))
    return tensor


@cache
def is_view(func: Any) -> bool:
    """Return whether an operator returns views of its first argument."""
    returns = func._schema.returns
    arguments = func._schema.arguments
    if not returns or not arguments or arguments[0].alias_info is None:
        return False
    of_return, of_argument = returns[0].alias_info, arguments[0].alias_info
    return of_return is not None and not of_return.is_write and not of_argument.is_write


def run_view(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a view operator and return a view, or a list of views."""
    base: OclTensor = args[0]
    offset: Any = base.storage_offset()
    if func in LAZY:
        return LAZY[func](base)
    try:
        key = func, *map(_hashable, args[1:]), *(kwargs.items() if kwargs else ())
        metadata = _cached_metadata(base.size(), base.stride(), offset, base.dtype, key)
    except TypeError:  # an argument is not hashable
        metadata = _metadata(func, base.size(), base.stride(), offset, base.dtype, args[1:], kwargs)
    device = base.memory.device
    if func is aten.as_strided.default:
        _check_bounds(base, *metadata)
    if isinstance(metadata, list):
        return [interned_meta(device, *item).view_of(base) for item in metadata]
    return interned_meta(device, *metadata).view_of(base)


def _check_bounds(
    base: OclTensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
) -> None:
    """Raise torch's error if a view would exceed the storage of its base."""
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(step < 0 for step in stride):
        raise RuntimeError(
            "as_strided: Negative strides are not supported at the moment, got strides: "
            f"{list(stride)}"
        )
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")
    needed = (offset + extent(size, stride)) * dtype.itemsize if prod(size) else 0
    if needed > base.memory.used:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, "
            f"and itemsize {dtype.itemsize} requiring a storage size of {needed} are out of bounds "
            f"for storage of size {base.memory.used}"
        )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=1 << 13)
def _cached_metadata(size: Any, stride: Any, offset: int, dtype: torch.dtype, key: Any) -> Any:
    func, *args = key
    positional = [arg for arg in args if not _is_keyword(arg)]
    keywords = dict(arg for arg in args if _is_keyword(arg))
    return _metadata(func, size, stride, offset, dtype, positional, keywords)


def _is_keyword(arg: Any) -> bool:
    return isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[0], str)


def _metadata(
    func: Any, size: Any, stride: Any, begin: int, dtype: torch.dtype, args: Any, kwargs: Any
) -> Any:
    """Return size, strides, offset and dtype of a view; a list of them for several views."""
    if func is aten.as_strided.default:
        offset = args[2] if len(args) > 2 else kwargs.get("storage_offset")
        if offset is None:
            offset = begin
        return tuple(args[0]), tuple(args[1]), offset, dtype
    # keep the offset: torch may refuse a view as another dtype because of it
    meta_tensor = torch.empty(0, dtype=dtype, device="meta").as_strided(size, stride, begin)
    result = func(meta_tensor, *args, **kwargs)
    if isinstance(result, (list, tuple)):
        return [_metadata_of(view) for view in result]
    return _metadata_of(result)


def _metadata_of(view: torch.Tensor) -> Any:
    return tuple(view.size()), tuple(view.stride()), int(view.storage_offset()), view.dtype
