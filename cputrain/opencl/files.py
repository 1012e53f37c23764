"""`torch.load` with `map_location="ocl"`, whatever device the file was saved from.

Torch reads bytes into a storage on the target device, but ours has no storages. So the bytes are
read into a host storage that reports the device, and are copied when a tensor is built from it.
"""

from __future__ import annotations

from typing import Any

import torch

from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, fill, resize_in_place

PRIORITY = 5
"""Priority of the deserializer: before torch's own."""


class HostStorage(torch.UntypedStorage):
    """Host storage that reports a device as its own, until tensors are built from it."""

    target_device: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device of the tensors that are built from the storage."""
        return self.target_device


def register(name: str) -> None:
    """Register the deserializer with torch.load for the device type `name`."""

    def read(storage: Any, location: str) -> Any:
        if not location.startswith(name):
            return None
        host_storage: Any = HostStorage(storage.nbytes())  # type: ignore[no-untyped-call]
        host_storage.target_device = torch.device("cpu")
        host_storage.copy_(storage)
        host_storage.target_device = torch.device(location)
        return host_storage

    torch.serialization.register_package(PRIORITY, lambda _: None, read)


@kernel(torch.ops.aten.set_.source_Storage_storage_offset)
def set_(self: OclTensor, source: Any, storage_offset: int, size: Any, stride: Any) -> Any:
    """Copy a storage's bytes to a tensor, with this offset, size and stride."""
    value = torch.empty(0, dtype=self.dtype).set_(source, storage_offset, size, stride)
    resize_in_place(self, value.size(), value.contiguous().stride())
    fill(self, value)
    return self
