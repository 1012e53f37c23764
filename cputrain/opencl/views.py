"""Views: tensors in the same memory; their metadata is computed by torch on the meta device."""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import torch

from cputrain.opencl.tensor import OclTensor, extent, form_in, reformed

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


def reform(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of `IN_PLACE` and return its argument."""
    one: OclTensor = args[0]
    begin: Any = one.storage_offset()
    view = IN_PLACE[func]
    size, stride, *_ = _forms(view, one.size(), one.stride(), begin, one.dtype, args[1:], kwargs)
    reformed(one, torch.empty(0, device="meta").as_strided(size, stride, begin))
    return one


@cache
def is_view(func: Any) -> bool:
    """Return whether an operator returns views of its first argument."""
    returns = func._schema.returns
    arguments = func._schema.arguments
    if not returns or not arguments or arguments[0].alias_info is None:
        return False
    of_return, of_argument = returns[0].alias_info, arguments[0].alias_info
    return of_return is not None and not of_return.is_write and not of_argument.is_write


def viewed(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a view operator and return a view, or a list of views."""
    base: OclTensor = args[0]
    offset: Any = base.storage_offset()
    if func in LAZY:
        return LAZY[func](base)
    try:
        key = func, *map(_hashable, args[1:]), *(kwargs.items() if kwargs else ())
        forms = _forms_known(base.size(), base.stride(), offset, base.dtype, key)
    except TypeError:  # an argument is not hashable
        forms = _forms(func, base.size(), base.stride(), offset, base.dtype, args[1:], kwargs)
    device = base.memory.device
    if func is aten.as_strided.default:
        _require_within(base, *forms)
    if isinstance(forms, list):
        return [form_in(device, *form).view_of(base) for form in forms]
    return form_in(device, *forms).view_of(base)


def _require_within(
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
def _forms_known(size: Any, stride: Any, offset: int, dtype: torch.dtype, key: Any) -> Any:
    func, *args = key
    first = [one for one in args if not _is_named(one)]
    named = dict(one for one in args if _is_named(one))
    return _forms(func, size, stride, offset, dtype, first, named)


def _is_named(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)


def _forms(
    func: Any, size: Any, stride: Any, begin: int, dtype: torch.dtype, args: Any, kwargs: Any
) -> Any:
    """Return size, strides, offset and dtype of a view; a list of them for several views."""
    if func is aten.as_strided.default:
        offset = args[2] if len(args) > 2 else kwargs.get("storage_offset")
        if offset is None:
            offset = begin
        return tuple(args[0]), tuple(args[1]), offset, dtype
    # keep the offset: torch may refuse a view as another dtype because of it
    twin = torch.empty(0, dtype=dtype, device="meta").as_strided(size, stride, begin)
    found = func(twin, *args, **kwargs)
    if isinstance(found, (list, tuple)):
        return [_form(one) for one in found]
    return _form(found)


def _form(form: torch.Tensor) -> Any:
    return tuple(form.size()), tuple(form.stride()), int(form.storage_offset()), form.dtype
