"""Errors within a backward: kept until it is through, and raised then.

An exception of Python that leaves a kernel while autograd is at work ends the process: autograd
puts the streams of the device back meanwhile, by Python that must not fail (torch 2.13). So the
kernel gives a tensor of the right form, whatever is in it, and what went wrong is raised by the
call of backward as if it had come from there. Handlers of signals, which may raise at any
instruction, run when the backward has ended.
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
    """Something of the form that the operator would have given."""
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
    """Torch's function that runs a backward, with what went wrong in it raised."""
    from functools import wraps

    @wraps(own)
    def run(*args: Any, **options: Any) -> Any:
        # by this thread, whatever the device: so what goes wrong is known to be this call's
        with torch.autograd.set_multithreading_enabled(False), deferred_signals(), BACKWARD:
            try:
                found = own(*args, **options)
            except BaseException as error:
                if not in_backward() and (first := taken()) is not None:
                    # (a SystemError says only that the first one has been taken from torch)
                    raise first from None if isinstance(error, SystemError) else error
                raise
        if not in_backward() and (first := taken()) is not None:
            raise first
        return found

    return run
