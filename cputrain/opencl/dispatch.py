"""`__torch_dispatch__` of `OclTensor`: replay, kernel, decomposition, view or CPU fallback."""

from __future__ import annotations

import torch

from cputrain.opencl.device import OPERATOR_SCOPE, to_torch_error
from cputrain.opencl.fallback import run_on_cpu
from cputrain.opencl.ops.factories import detach
from cputrain.opencl.replay import is_composite, run_or_replay
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor, set_dispatch
from cputrain.opencl.views import IN_PLACE, is_view, run_in_place_view, run_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DETACH = torch.ops.aten.detach.default


def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG001
    """Run an operator and return its result."""
    if func is DETACH:  # (autograd detaches each gradient)
        return detach(args[0])
    kwargs = kwargs or {}
    try:
        return run_or_replay(_run_operator, _run_on_cpu, func, args, kwargs)
    except Exception as error:
        if (torch_error := to_torch_error(error)) is not error:
            raise torch_error from error
        raise


def _run_operator(func: Any, args: Any, kwargs: Any) -> Any:
    run_kernel = KERNELS.get(func)
    if run_kernel is not None:
        with OPERATOR_SCOPE:
            result = run_kernel(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if is_composite(func):
        return func.decompose(*args, **kwargs)
    if is_view(func) and isinstance(args[0], OclTensor):
        return run_view(func, args, kwargs)
    if func in IN_PLACE:
        return run_in_place_view(func, args, kwargs)
    with torch._C._DisableTorchDispatch(), OPERATOR_SCOPE:
        return run_on_cpu(func, args, kwargs)


def _run_on_cpu(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._DisableTorchDispatch(), OPERATOR_SCOPE:
        return run_on_cpu(func, args, kwargs, chosen=True)


set_dispatch(dispatch)
