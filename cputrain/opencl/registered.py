"""Register the device "ocl" with torch on import: factories, fallbacks, monkeypatches."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from cputrain.errors import CputrainError
from cputrain.opencl.autocast import left_off
from cputrain.opencl.device import devices
from cputrain.opencl.errors import raised_at_its_end
from cputrain.opencl.fallback import Told, on_cpu
from cputrain.opencl.guard import Guard
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.tensor import OclTensor, fill, index_of, made, on_host
from cputrain.runtime.state import NOW

NAME = "ocl"

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Register the device type "ocl"; does nothing when called again."""
    if _libraries:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise CputrainError(
            "cputrain.opencl", "needs torch's one place for a further device",
            found=f"{taken!r} in it", do=f"Do not import what registers {taken!r}.",
        )  # fmt: skip
    devices()  # raises if there is no OpenCL device
    from torch.optim.optimizer import _foreach_supported_types as optimizers_types
    from torch.utils._foreach_utils import _foreach_supported_types
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from cputrain.opencl import dispatch, files, module, ops  # noqa: F401  (registers the kernels)

    _setup_privateuseone_for_python_backend(NAME, backend_module=module.made, device_guard=Guard())
    library: Any = torch.library.Library
    aten = library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    every = library("_", "IMPL")
    every.fallback(_otherwise, "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # no casts
    _libraries.extend((aten, every))
    engine: Any = torch.autograd.graph
    run = raised_at_its_end(engine._engine_run_backward)
    both: tuple[Any, ...] = (engine, torch.autograd)  # both modules hold a reference
    for place in both:
        place._engine_run_backward = run
    every_tensor: Any = torch.Tensor
    every_tensor.pin_memory = _pinned(every_tensor.pin_memory)
    files.register(NAME)
    NOW.applied[NAME] = Told()
    kinds: tuple[Any, ...] = (_foreach_supported_types, optimizers_types)
    for known in kinds:  # else optimizers loop over single tensors
        known.append(OclTensor)
    autocast: Any = torch.amp.autocast_mode.autocast
    autocast.__init__ = left_off(autocast.__init__, NAME)
    kind: Any = torch.nn.Module
    kind._apply = _keeping_parameters(kind._apply)


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None,  # noqa: ARG001
    pin_memory: Any = None, memory_format: Any = None,  # noqa: ARG001
) -> OclTensor:  # fmt: skip
    kind = dtype or torch.get_default_dtype()
    stride: Any = contiguous(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return made(index_of(device), size, stride, kind)


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None,  # noqa: ARG001
    device: Any = None, pin_memory: Any = None,  # noqa: ARG001
) -> OclTensor:  # fmt: skip
    return made(index_of(device), size, stride, dtype or torch.get_default_dtype())


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


def _otherwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has no tensor arguments on the CPU."""
    return on_cpu(func, args, kwargs)


def _pinned(own: Any) -> Any:
    """Wrap torch's pin_memory: its default would be this device, which has no pinned memory."""

    @wraps(own)
    def pin_memory(self: Any, device: Any = None) -> Any:
        if device is None and not torch.cuda.is_available():
            return self
        return own(self, device or "cuda")

    return pin_memory


def _keeping_parameters(own: Any) -> Any:
    """Wrap `Module._apply` so that parameters keep their identity when moved.

    An optimizer or another module may hold them. Torch would replace them with new parameters when
    they move to or from this device, as the tensor types differ; swapping keeps the objects.
    """
    future = torch.__future__

    @wraps(own)
    def apply(module: Any, fn: Any, recurse: bool = True) -> Any:
        first = next(module.parameters(), None)
        if first is None or future.get_swap_module_params_on_conversion():
            return own(module, fn, recurse)
        with torch.no_grad():
            comes = isinstance(fn(first), OclTensor)
        if comes == isinstance(first, OclTensor):
            return own(module, fn, recurse)
        future.set_swap_module_params_on_conversion(True)
        try:
            return own(module, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)

    return apply


register()
