"""`OclTensor`: torch holds its metadata (shape, strides, dtype), we hold its device memory."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.machine.opencl import cl
from cputrain.opencl.deferred_errors import kept
from cputrain.opencl.device import HERE, Memory, devices, rounded
from cputrain.opencl.trace import cannot_be_repeated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.opencl.device import Device


class TensorMeta:
    """Metadata of a tensor: device, dtype, size, strides, offset. Interned by `form_in`."""

    __slots__ = ("device", "dtype", "offset", "size", "stride", "tensor")

    def __init__(
        self,
        device: Device,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
    ) -> None:
        self.device, self.dtype, self.offset = device, dtype, offset
        self.size, self.stride = size, stride
        make: Any = torch.Tensor._make_wrapper_subclass
        self.tensor: Callable[[], OclTensor] = partial(
            make, OclTensor, size, strides=stride, storage_offset=offset, dtype=dtype,
            device=torch.device(device.name_in_torch),
        )  # fmt: skip
        """Create an `OclTensor` with this metadata and no memory yet."""

    def within(self, memory: Memory) -> OclTensor:
        """Return a tensor with this metadata in `memory`."""
        found = self.tensor()
        found.memory = memory
        found.form = self
        return found

    def view_of(self, base: OclTensor) -> OclTensor:
        """Return a view of `base` with this metadata.

        As in torch, a view of a normal tensor is a normal tensor, also in inference mode.
        """
        if torch.is_inference_mode_enabled() and not base.is_inference():
            with torch.inference_mode(False):
                return self.within(base.memory)
        return self.within(base.memory)


form_in = lru_cache(maxsize=1 << 14)(TensorMeta)
"""Return the interned `TensorMeta` of these values."""


class OclTensor(torch.Tensor):
    """A tensor on an OpenCL device; views share the `memory` of their base."""

    memory: Memory
    form: TensorMeta

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        memory: Memory,
        size: Sequence[int],
        stride: Sequence[int],
        offset: int,
        dtype: torch.dtype,
    ) -> OclTensor:
        return form_in(memory.device, tuple(size), tuple(stride), offset, dtype).within(memory)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shown = repr(self.detach().cpu())
        end = ", requires_grad=True)" if self.is_leaf and self.requires_grad else ")"
        return f"{shown[:-1]}, device='{self.device}'{end}"

    @property
    def data(self) -> Any:
        """As `torch.Tensor.data`; assigning to it replaces the memory as well."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Any) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.memory, self.form = value.memory, value.form

    def register_hook(self, hook: Any) -> Any:
        """Register a hook whose error is raised when the backward has finished: see errors.py."""
        return super().register_hook(kept(hook))  # type: ignore[no-untyped-call]

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Register a hook whose error is raised when the backward has finished: see errors.py."""
        return super().register_post_accumulate_grad_hook(kept(hook))  # type: ignore[no-untyped-call]

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self) -> Any:
        """Return the values as a number or nested lists."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as a NumPy array; needs `force=True`, as for every device tensor."""
        if not force:
            raise TypeError(
                f"can't convert an {self.device} tensor to numpy: say .cpu() before, or force=True"
            )
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Pickle the values as a CPU tensor, so that `map_location` applies when loading."""
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        arguments = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, arguments

    def __deepcopy__(self, known: dict[int, Any]) -> OclTensor:
        if id(self) in known:
            return known[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "only tensors that are leaves of the graph can be deep-copied: detach() it first"
            )
        with torch.no_grad():
            copied: Any = self.detach().clone(memory_format=torch.preserve_format)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        known[id(self)] = copied
        for name, value in self.__dict__.items():
            if name not in OWN:
                setattr(copied, name, deepcopy(value, known))
        if self.grad is not None:
            copied.grad = deepcopy(self.grad, known)
        return copied  # type: ignore[no-any-return]


OWN = frozenset({"memory", "form", "_is_param"})
"""Attributes that creating a tensor sets, which `deepcopy` must not copy."""


def dispatched_by(dispatch: Callable[..., Any]) -> None:
    """Install the dispatch function; dispatch.py calls this, as it imports this module."""
    OclTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]


def index_of(device: Any) -> int:
    """Return the index of a device argument: the current device if it has none."""
    index = None if device is None else torch.device(device).index
    return HERE.index if index is None else index


def twin_of(one: OclTensor) -> torch.Tensor:
    """Return a meta tensor with the same size, strides and dtype."""
    return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")


def made(index: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> OclTensor:
    """Return a new, uninitialized tensor on device `index`."""
    there = devices()
    if not 0 <= index < len(there):
        raise RuntimeError(f"there is no device ocl:{index}: there are {len(there)}")
    memory = there[index].allocate(*_room(tuple(size), tuple(stride), dtype.itemsize))
    return OclTensor(memory, size, stride, 0, dtype)


def dense(one: Any) -> OclTensor:
    """Return the tensor as contiguous: itself if it is, else a copy."""
    found: OclTensor = one if one.is_contiguous() else one.contiguous()
    return found


def places_of(*tensors: OclTensor | None) -> list[Any]:
    """Return the kernel arguments of tensors: for each, its buffer and its storage offset."""
    found: list[Any] = []
    for one in tensors:
        assert one is not None
        found += (one.memory.buffer, one.storage_offset())
    return found


@lru_cache(maxsize=1 << 14)
def _room(size: tuple[int, ...], stride: tuple[int, ...], each: int) -> tuple[int, int]:
    """Return the block size and the storage size of a tensor, in bytes."""
    used = extent(size, stride) * each
    return rounded(used), used


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if prod(size) else 0


def resized(one: OclTensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Resize a tensor in place: within its block if it fits, as on the CPU, else in new memory."""
    offset, many = int(one.storage_offset()), extent(tuple(size), tuple(stride))
    memory = one.memory
    used = (offset + many) * one.itemsize
    if used <= memory.size:
        memory.used = max(memory.used, used)
    else:
        offset = 0
        memory = made(memory.device.index, size, stride, one.dtype).memory
    with torch._C._DisableTorchDispatch():
        for count in (0, many):  # torch ignores a resize to the same size
            torch.ops.aten.resize_.default.redispatch(_METADATA, one, [count])
    reformed(one, torch.empty(0, device="meta").as_strided(size, stride, offset))
    one.memory = memory


def reformed(one: OclTensor, like: torch.Tensor) -> None:
    """Set a tensor's size, strides and offset in place to those of `like`."""
    cannot_be_repeated()
    size, stride, offset = form_of(like)
    with torch._C._DisableTorchDispatch():
        torch.ops.aten.as_strided_.default.redispatch(_METADATA, one, size, stride, offset)
    one.form = form_in(one.memory.device, tuple(size), tuple(stride), offset, one.dtype)


def form_of(one: torch.Tensor) -> tuple[list[int], list[int], int]:
    """Return size, strides and storage offset."""
    return list(one.size()), list(one.stride()), int(one.storage_offset())


_METADATA = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""Dispatch keys of CPU operators, which can change a tensor's metadata without its values."""


def on_host(one: OclTensor, host: Any = None) -> torch.Tensor:
    """Return a CPU tensor of the same values: on the same memory if shared, else on a copy.

    Args:
        one: Tensor to read. Its device must have finished the kernels that write to it.
        host: Existing host copy of its memory, if there is one.
    """
    return on_base(one, torch.from_numpy(read(one.memory) if host is None else host))


def on_base(one: OclTensor, base: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the same metadata as a view of `base`, its memory's bytes."""
    whole = base[: base.numel() // one.dtype.itemsize * one.dtype.itemsize].view(one.dtype)
    return whole.as_strided(one.size(), one.stride(), one.storage_offset())


def read(memory: Memory) -> Any:
    """Return a memory's bytes as a NumPy array: the memory itself if shared, else a copy."""
    cannot_be_repeated()
    if memory.host is not None:
        return memory.host
    if (copy := memory.copy) is not None:
        return copy
    host = np.empty(memory.size, np.uint8)
    cl().enqueue_copy(memory.device.queue, host, memory.buffer)
    return host


def write(memory: Memory, host: Any) -> None:
    """Copy host bytes to the device; no copy for shared or host-dirty memory."""
    if memory.host is None and memory.copy is None:
        cl().enqueue_copy(memory.device.queue, memory.buffer, host)
        memory.device.finish()


def fill(there: OclTensor, value: Any) -> None:
    """Copy a CPU tensor to a device tensor, or fill that with a number."""
    there.memory.device.finish()
    host = read(there.memory)
    target = on_host(there, host)
    if isinstance(value, torch.Tensor):
        target.copy_(value)
    else:  # elements may overlap, as in an expanded tensor
        target.fill_(value)
    write(there.memory, host)
