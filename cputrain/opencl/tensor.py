"""`OclTensor`: a torch.Tensor with metadata in torch, and data in OpenCL device memory."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.machine.opencl import cl
from cputrain.opencl.device import CURRENT_DEVICE, DeviceMemory, devices, rounded_block_size
from cputrain.opencl.trace import break_trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.opencl.device import Device


class TensorMeta:
    """Metadata of a tensor: device, dtype, size, strides, offset. Interned by `interned_meta`."""

    __slots__ = ("device", "dtype", "make_tensor", "offset", "size", "stride")

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
        make_subclass: Any = torch.Tensor._make_wrapper_subclass
        self.make_tensor: Callable[[], OclTensor] = partial(
            make_subclass, OclTensor, size, strides=stride, storage_offset=offset, dtype=dtype,
            device=torch.device(device.name_in_torch),
        )  # fmt: skip
        """Create an `OclTensor` with this metadata and no memory yet."""

    def tensor_in(self, memory: DeviceMemory) -> OclTensor:
        """Return a tensor with this metadata in `memory`."""
        tensor = self.make_tensor()
        tensor.memory = memory
        tensor.metadata = self
        return tensor

    def view_of(self, base: OclTensor) -> OclTensor:
        """Return a view of `base` with this metadata.

        As in torch, a view of a normal tensor is a normal tensor, also in inference mode.
        """
        if torch.is_inference_mode_enabled() and not base.is_inference():
            with torch.inference_mode(False):
                return self.tensor_in(base.memory)
        return self.tensor_in(base.memory)


interned_meta = lru_cache(maxsize=1 << 14)(TensorMeta)
"""Return the interned `TensorMeta` of these values."""


class OclTensor(torch.Tensor):
    """A tensor on an OpenCL device; views share the `memory` of their base."""

    memory: DeviceMemory
    metadata: TensorMeta

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        memory: DeviceMemory,
        size: Sequence[int],
        stride: Sequence[int],
        offset: int,
        dtype: torch.dtype,
    ) -> OclTensor:
        return interned_meta(memory.device, tuple(size), tuple(stride), offset, dtype).tensor_in(
            memory
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        text = repr(self.detach().cpu())
        end = ", requires_grad=True)" if self.is_leaf and self.requires_grad else ")"
        return f"{text[:-1]}, device='{self.device}'{end}"

    @property
    def data(self) -> Any:
        """As `torch.Tensor.data`; assigning to it replaces the memory as well."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Any) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.memory, self.metadata = value.memory, value.metadata

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self) -> Any:
        """Return the values as a number or nested lists."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as a NumPy array; needs `force=True`, as for every device tensor."""
        if not force:
            raise TypeError(
                f"can't convert an {self.device} tensor to numpy: call .cpu() first, or pass "
                "force=True"
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

    def __deepcopy__(self, memo: dict[int, Any]) -> OclTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
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
        memo[id(self)] = copied
        for name, value in self.__dict__.items():
            if name not in INTRINSIC_ATTRIBUTES:
                setattr(copied, name, deepcopy(value, memo))
        if self.grad is not None:
            copied.grad = deepcopy(self.grad, memo)
        return copied  # type: ignore[no-any-return]


INTRINSIC_ATTRIBUTES = frozenset({"memory", "metadata", "_is_param", "graphs"})
"""Attributes of this one tensor, which `deepcopy` must not copy."""


def set_dispatch(dispatch: Callable[..., Any]) -> None:
    """Install the dispatch function; dispatch.py calls this, as it imports this module."""
    OclTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]


def device_index_of(device: Any) -> int:
    """Return the index of a device argument: the current device if it has none."""
    index = None if device is None else torch.device(device).index
    return CURRENT_DEVICE.index if index is None else index


def meta_tensor_like(tensor: OclTensor) -> torch.Tensor:
    """Return a meta tensor with the same size, strides and dtype."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def empty(index: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> OclTensor:
    """Return a new, uninitialized tensor on device `index`."""
    all_devices = devices()
    if not 0 <= index < len(all_devices):
        raise RuntimeError(f"there is no device ocl:{index}: there are {len(all_devices)}")
    memory = all_devices[index].allocate(
        *_block_and_storage_bytes(tuple(size), tuple(stride), dtype.itemsize)
    )
    return OclTensor(memory, size, stride, 0, dtype)


def as_contiguous(tensor: Any) -> OclTensor:
    """Return the tensor as contiguous: itself if it is, else a copy."""
    result: OclTensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    return result


def buffer_arguments(*tensors: OclTensor | None) -> list[Any]:
    """Return the kernel arguments of tensors: for each, its buffer and its storage offset."""
    arguments: list[Any] = []
    for tensor in tensors:
        assert tensor is not None
        arguments += (tensor.memory.buffer, tensor.storage_offset())
    return arguments


@lru_cache(maxsize=1 << 14)
def _block_and_storage_bytes(
    size: tuple[int, ...], stride: tuple[int, ...], itemsize: int
) -> tuple[int, int]:
    """Return the block size and the storage size of a tensor, in bytes."""
    used = extent(size, stride) * itemsize
    return rounded_block_size(used), used


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if prod(size) else 0


def resize_in_place(tensor: OclTensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Resize a tensor in place: within its block if it fits, as on the CPU, else in new memory."""
    offset, num_elements = int(tensor.storage_offset()), extent(tuple(size), tuple(stride))
    memory = tensor.memory
    used = (offset + num_elements) * tensor.itemsize
    if used <= memory.size:
        memory.used = max(memory.used, used)
    else:
        offset = 0
        memory = empty(memory.device.index, size, stride, tensor.dtype).memory
    with torch._C._DisableTorchDispatch():
        for count in (0, num_elements):  # torch ignores a resize to the same size
            torch.ops.aten.resize_.default.redispatch(_CPU_KEYS, tensor, [count])
    set_metadata(tensor, torch.empty(0, device="meta").as_strided(size, stride, offset))
    tensor.memory = memory


def set_metadata(tensor: OclTensor, like: torch.Tensor) -> None:
    """Set a tensor's size, strides and offset in place to those of `like`."""
    break_trace()
    size, stride, offset = metadata_of(like)
    with torch._C._DisableTorchDispatch():
        torch.ops.aten.as_strided_.default.redispatch(_CPU_KEYS, tensor, size, stride, offset)
    tensor.metadata = interned_meta(
        tensor.memory.device, tuple(size), tuple(stride), offset, tensor.dtype
    )


def metadata_of(tensor: torch.Tensor) -> tuple[list[int], list[int], int]:
    """Return size, strides and storage offset."""
    return list(tensor.size()), list(tensor.stride()), int(tensor.storage_offset())


_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""Dispatch keys of CPU operators, which can change a tensor's metadata without its values."""


def on_host(tensor: OclTensor, host: Any = None) -> torch.Tensor:
    """Return a CPU tensor of the same values: on the same memory if shared, else on a copy.

    Args:
        tensor: Tensor to read. Its device must have finished the kernels that write to it.
        host: Existing host copy of its memory, if there is one.
    """
    return view_of_bytes(tensor, torch.from_numpy(read(tensor.memory) if host is None else host))


def view_of_bytes(tensor: OclTensor, base: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the same metadata as a view of `base`, its memory's bytes."""
    elements = base[: base.numel() // tensor.dtype.itemsize * tensor.dtype.itemsize].view(
        tensor.dtype
    )
    return elements.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def read(memory: DeviceMemory) -> Any:
    """Return a memory's bytes as a NumPy array: the memory itself if shared, else a copy."""
    break_trace()
    if memory.host is not None:
        return memory.host
    if (copy := memory.copy) is not None:
        return copy
    host = np.empty(memory.size, np.uint8)
    cl().enqueue_copy(memory.device.queue, host, memory.buffer)
    return host


def write(memory: DeviceMemory, host: Any) -> None:
    """Copy host bytes to the device; no copy for shared or host-dirty memory."""
    if memory.host is None and memory.copy is None:
        cl().enqueue_copy(memory.device.queue, memory.buffer, host)
        memory.device.finish()


def fill(tensor: OclTensor, value: Any) -> None:
    """Copy a CPU tensor to a device tensor, or fill that with a number."""
    if not tensor.numel():
        return
    tensor.memory.device.finish()
    host = read(tensor.memory)
    target = on_host(tensor, host)
    if isinstance(value, torch.Tensor):
        target.copy_(value)
    else:  # elements may overlap, as in an expanded tensor
        target.fill_(value)
    write(tensor.memory, host)
