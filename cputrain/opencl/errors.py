"""Errors within a backward: kept until it has finished, then raised by the call of backward.

A Python exception that leaves a kernel while autograd is running ends the process: autograd
restores the device's streams by Python code that must not fail (torch 2.13). So the failing kernel
returns an uninitialized tensor of the right shape, and the call of backward raises the error at its
end. Signal handlers, which may raise at any instruction, run when the backward has finished.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as tree

from cputrain.ipc import deferred_signals
from cputrain.opencl.deferred_errors import in_backward, taken
from cputrain.opencl.guard import BACKWARD
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.tensor import OclTensor, made, twin_of


def stand_in(func: Any, args: Any, kwargs: Any) -> Any:
    """Return an uninitialized result of the shape that the failed operator would have returned."""
    writes = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if writes:
        return writes[0]
    tensors = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, OclTensor)]
    index = tensors[0].memory.device.index if tensors else 0
    bare = {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs
    try:
        found = func(*tree.tree_map_only(OclTensor, twin_of, args),
                     **tree.tree_map_only(OclTensor, twin_of, bare))  # fmt: skip
    except Exception:
        return tensors[0] if tensors else None
    return tree.tree_map_only(
        torch.Tensor, lambda one: made(index, one.size(), contiguous(one.size()), one.dtype), found
    )


def raised_at_its_end(own: Any) -> Any:
    """Wrap torch's function that runs a backward so that it raises the first kept error."""
    from functools import wraps

    @wraps(own)
    def run(*args: Any, **options: Any) -> Any:
        # run it in this thread, so that kept errors are known to belong to this call
        with torch.autograd.set_multithreading_enabled(False), deferred_signals(), BACKWARD:
            try:
                found = own(*args, **options)
            except BaseException as error:
                if not in_backward() and (first := taken()) is not None:
                    # (a SystemError only tells that the first error was withheld from torch)
                    raise first from None if isinstance(error, SystemError) else error
                raise
        if not in_backward() and (first := taken()) is not None:
            raise first
        return found

    return run
