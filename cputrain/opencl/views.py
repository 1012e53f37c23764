"""Views: another form of the same memory. Torch itself says which, on a tensor without values."""

from __future__ import annotations

from functools import cache

import torch

from cputrain.opencl.tensor import OclTensor, twin_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

aten = torch.ops.aten

ABSOLUTE = (aten.as_strided.default, aten._reshape_alias.default)
"""What is told where it begins in memory, or begins where it was."""


LAZY = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
"""Views that torch marks, to compute with later: here that is done at once."""


@cache
def is_view(func: Any) -> bool:
    """Whether what it returns is in the memory of its first argument."""
    returns = func._schema.returns
    arguments = func._schema.arguments
    if not returns or not arguments or arguments[0].alias_info is None:
        return False
    of_return, of_argument = returns[0].alias_info, arguments[0].alias_info
    return of_return is not None and not of_return.is_write and not of_argument.is_write


def viewed(func: Any, args: Any, kwargs: Any) -> Any:
    """What a view gives."""
    base: OclTensor = args[0]
    twin = twin_of(base)
    begin = int(base.storage_offset())
    if func is aten.as_strided.default:
        offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
        return OclTensor(
            base.memory, args[1], args[2], begin if offset is None else offset, base.dtype
        )
    if func in LAZY:
        return LAZY[func](base)
    found = func(twin, *args[1:], **kwargs)
    if isinstance(found, (list, tuple)):
        return type(found)(_of(base, one, begin) for one in found)
    return _of(base, found, begin)


def _of(base: OclTensor, form: torch.Tensor, begin: int) -> OclTensor:
    scale = base.dtype.itemsize / form.dtype.itemsize
    offset = int(begin * scale) + int(form.storage_offset())
    return OclTensor(base.memory, form.size(), form.stride(), offset, form.dtype)
