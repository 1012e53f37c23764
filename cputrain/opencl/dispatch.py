"""`__torch_dispatch__` of `OclTensor`: replay, kernel, decomposition, view or CPU fallback."""

from __future__ import annotations

import torch

from cputrain.opencl.deferred_errors import in_backward, keep
from cputrain.opencl.device import OPERATOR, in_clear
from cputrain.opencl.errors import stand_in
from cputrain.opencl.fallback import on_cpu
from cputrain.opencl.replay import is_made_of_others, run_as_known
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor, dispatched_by
from cputrain.opencl.views import IN_PLACE, is_view, reform, viewed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG001
    """Run an operator and return its result; within a backward, keep errors for its end."""
    kwargs = kwargs or {}
    try:
        return run_as_known(_done, _chosen_for_cpu, func, args, kwargs)
    except BaseException as error:
        if not in_backward():
            if (clear := in_clear(error)) is not error:
                raise clear from error
            raise
        keep(in_clear(error))
        return stand_in(func, args, kwargs)


def _done(func: Any, args: Any, kwargs: Any) -> Any:
    run = KERNELS.get(func)
    if run is not None:
        with OPERATOR:
            found = run(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if is_made_of_others(func):
        return func.decompose(*args, **kwargs)
    if is_view(func) and isinstance(args[0], OclTensor):
        return viewed(func, args, kwargs)
    if func in IN_PLACE:
        return reform(func, args, kwargs)
    with torch._C._DisableTorchDispatch(), OPERATOR:
        return on_cpu(func, args, kwargs)


def _chosen_for_cpu(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._DisableTorchDispatch(), OPERATOR:
        return on_cpu(func, args, kwargs, chosen=True)


dispatched_by(dispatch)
