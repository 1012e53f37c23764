"""Files of tensors, read to a device whatever device they were written on.

Torch reads bytes into a storage where the tensor is to be. Ours has no storages: so the bytes stay
on the host, in one that says it is on the device, and go there with the tensor that is made of it.
"""

from __future__ import annotations

from typing import Any

import torch

from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, fill, resized

FIRST = 5
"""Before what torch itself would do."""


class Bytes(torch.UntypedStorage):
    """On the host, for a device."""

    goes_to: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where a tensor of it will be."""
        return self.goes_to


def register(name: str) -> None:
    """Have torch.load use this for a device of this name."""

    def read(storage: Any, location: str) -> Any:
        if not location.startswith(name):
            return None
        found: Any = Bytes(storage.nbytes())  # type: ignore[no-untyped-call]
        found.goes_to = torch.device("cpu")
        found.copy_(storage)
        found.goes_to = torch.device(location)
        return found

    torch.serialization.register_package(FIRST, lambda _: None, read)


@kernel(torch.ops.aten.set_.source_Storage_storage_offset)
def set_(self: OclTensor, source: Any, storage_offset: int, size: Any, stride: Any) -> Any:
    """The tensor has these bytes from now on."""
    value = torch.empty(0, dtype=self.dtype).set_(source, storage_offset, size, stride)
    resized(self, value.size(), value.contiguous().stride())
    fill(self, value)
    return self
