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
from cputrain.opencl.deferred_errors import in_backward, take_first_error
from cputrain.opencl.guard import BACKWARD
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.tensor import OclTensor, made, twin_of


def placeholder_result(func: Any, args: Any, kwargs: Any) -> Any:
    """Return an uninitialized result of the shape that the failed operator would have returned."""
    writes = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if writes:
        return writes[0]
    tensors = [
        tensor for tensor in tree.tree_leaves((args, kwargs)) if isinstance(tensor, OclTensor)
    ]
    index = tensors[0].memory.device.index if tensors else 0
    meta_kwargs = {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs
    try:
        result = func(*tree.tree_map_only(OclTensor, twin_of, args),
                     **tree.tree_map_only(OclTensor, twin_of, meta_kwargs))  # fmt: skip
    except Exception:
        return tensors[0] if tensors else None
    return tree.tree_map_only(
        torch.Tensor,
        lambda tensor: made(index, tensor.size(), contiguous(tensor.size()), tensor.dtype),
        result,
    )


def raising_kept_errors(run_backward: Any) -> Any:
    """Wrap torch's function that runs a backward so that it raises the first kept error."""
    from functools import wraps

    @wraps(run_backward)
    def run(*args: Any, **options: Any) -> Any:
        # run it in this thread, so that kept errors are known to belong to this call
        with torch.autograd.set_multithreading_enabled(False), deferred_signals(), BACKWARD:
            try:
                result = run_backward(*args, **options)
            except BaseException as error:
                if not in_backward() and (first_error := take_first_error()) is not None:
                    # (a SystemError only tells that the first error was withheld from torch)
                    raise first_error from None if isinstance(error, SystemError) else error
                raise
        if not in_backward() and (first_error := take_first_error()) is not None:
            raise first_error
        return result

    return run
