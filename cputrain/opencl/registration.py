"""Register the device "ocl" with torch on import: factories, fallbacks, monkeypatches."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import torch

from cputrain.errors import CputrainError
from cputrain.opencl.deferred_errors import Guard, raise_kept_errors
from cputrain.opencl.device import devices
from cputrain.opencl.fallback import FallbackSummary, run_on_cpu
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.tensor import OclTensor, device_index_of, empty, fill, on_host
from cputrain.runtime.root_forward import root_forward_of
from cputrain.runtime.state import NOW
from cputrain.variables import OCL_GRAPHS

NAME = "ocl"
"""Name of the device type in torch."""

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Register the device type "ocl"; does nothing when called again."""
    if _libraries:
        return
    backend_name = torch._C._get_privateuse1_backend_name()
    if backend_name not in ("privateuseone", NAME):
        raise CputrainError(
            "cputrain.opencl", "needs torch's single PrivateUse1 backend",
            found=f"{backend_name!r}, which is registered already",
            do=f"Do not import the package that registers {backend_name!r}.",
        )  # fmt: skip
    devices()  # raises if there is no OpenCL device
    from torch.optim.optimizer import _foreach_supported_types as optimizers_types
    from torch.utils._foreach_utils import _foreach_supported_types
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from cputrain.opencl import autocast, dispatch, files, module, ops  # noqa: F401  (of kernels)

    _setup_privateuseone_for_python_backend(
        NAME, backend_module=module.torch_ocl, device_guard=Guard()
    )
    library: Any = torch.library.Library
    aten = library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    fallback_library = library("_", "IMPL")
    fallback_library.fallback(_run_on_cpu, "PrivateUse1")
    fallback_library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    autocast.register(aten, NAME)
    _libraries.extend((aten, fallback_library))
    engine: Any = torch.autograd.graph
    run_backward = raise_kept_errors(engine._engine_run_backward)
    namespaces: tuple[Any, ...] = (engine, torch.autograd)  # both modules hold a reference
    for namespace in namespaces:
        namespace._engine_run_backward = run_backward
    tensor_class: Any = torch.Tensor
    tensor_class.pin_memory = _patch_pin_memory(tensor_class.pin_memory)
    files.register(NAME)
    NOW.applied[NAME] = FallbackSummary()
    if os.environ.get(OCL_GRAPHS) != "0":
        replay_calls()
    type_lists: tuple[Any, ...] = (_foreach_supported_types, optimizers_types)
    for types in type_lists:  # else optimizers loop over single tensors
        types.append(OclTensor)
    module_class: Any = torch.nn.Module
    module_class._apply = _patch_module_apply(module_class._apply)


def replay_calls() -> None:
    """Have calls of models that are the same in each step replayed."""
    from cputrain.opencl.graphs.graphed_models import GraphedModels

    graphed = GraphedModels()
    NOW.applied[f"{NAME} graphs"] = graphed
    root_forward_of(torch).add(graphed.call_model)


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None,  # noqa: ARG001
    pin_memory: Any = None, memory_format: Any = None,  # noqa: ARG001
) -> OclTensor:  # fmt: skip
    dtype = dtype or torch.get_default_dtype()
    stride: Any = contiguous(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return empty(device_index_of(device), size, stride, dtype)


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None,  # noqa: ARG001
    device: Any = None, pin_memory: Any = None,  # noqa: ARG001
) -> OclTensor:  # fmt: skip
    return empty(device_index_of(device), size, stride, dtype or torch.get_default_dtype())


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001
    if isinstance(target, OclTensor):
        value = source
        if isinstance(source, OclTensor):
            source.memory.device.finish()
            value = on_host(source)
        fill(target, value)
    else:
        source.memory.device.finish()
        target.copy_(on_host(source))
    return target


def _run_on_cpu(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has no tensor arguments on the CPU."""
    return run_on_cpu(func, args, kwargs)


def _patch_pin_memory(original: Any) -> Any:
    """Wrap torch's pin_memory: its default would be this device, which has no pinned memory."""

    @wraps(original)
    def pin_memory(self: Any, device: Any = None) -> Any:
        if device is None and not torch.cuda.is_available():
            return self
        return original(self, device or "cuda")

    return pin_memory


def _patch_module_apply(original: Any) -> Any:
    """Wrap `Module._apply` so that parameters keep their identity when moved.

    An optimizer or another module may hold them. Torch would replace them with new parameters when
    they move to or from this device, as the tensor types differ; swapping keeps the objects.
    """
    future = torch.__future__

    @wraps(original)
    def apply(module: Any, fn: Any, recurse: bool = True) -> Any:
        first = next(module.parameters(), None)
        if first is None or future.get_swap_module_params_on_conversion():
            return original(module, fn, recurse)
        with torch.no_grad():
            is_moving_here = isinstance(fn(first), OclTensor)
        if is_moving_here == isinstance(first, OclTensor):
            return original(module, fn, recurse)
        future.set_swap_module_params_on_conversion(True)
        try:
            return original(module, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)

    return apply


register()
