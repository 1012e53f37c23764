"""Functions of torch that are not recorded: they read numbers or layouts."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing import Any

VALUE_READERS = frozenset({
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__bool__, Tensor.__float__,
    Tensor.__int__, Tensor.__index__, Tensor.__repr__, Tensor.__format__, Tensor.__contains__,
    Tensor.is_nonzero,
})  # fmt: skip
"""Functions of one tensor that return numbers or texts."""

NEED_NO_GRAPH = frozenset({
    Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.detach,
    Tensor.data.__get__,  # type: ignore[attr-defined]
})  # fmt: skip
"""Functions whose result does not depend on the graph of a tensor."""

_LAYOUT = {
    name: getattr(Tensor, name)
    for name in (
        "size", "dim", "stride", "numel", "nelement", "ndimension", "element_size", "is_contiguous",
        "is_floating_point", "is_complex", "is_signed", "__len__", "storage_offset", "get_device",
        "type",
    )
}  # fmt: skip

_PROPERTIES = {
    name: getattr(Tensor, name).__get__
    for name in (
        "shape", "ndim", "dtype", "device", "layout", "is_cpu", "is_cuda", "is_meta", "is_sparse",
        "is_mkldnn", "is_quantized", "is_nested", "itemsize", "nbytes", "is_mps", "is_xpu",
        "is_sparse_csr",
    )
}  # fmt: skip

_REQUIRES_GRAD = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_IS_LEAF = Tensor.is_leaf.__get__  # type: ignore[attr-defined]

LAYOUT_READERS = frozenset({
    *_LAYOUT.values(), *_PROPERTIES.values(), _REQUIRES_GRAD, _IS_LEAF, torch.is_floating_point,
    torch.is_complex, torch.numel,
})  # fmt: skip
"""Functions that read what is known before numbers are computed."""


def describe_layout(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function of `LAYOUT_READERS` returns."""
    if function == _REQUIRES_GRAD:
        return bool(args[0].grad_name)
    if function == _IS_LEAF:
        return not args[0].grad_name
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of a module that a weak reference is to."""
    if isinstance(function, weakref.ref):
        function = function()
    return getattr(function, "__name__", None) or type(function).__name__
