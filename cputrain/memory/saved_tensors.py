"""Tensors that autograd saves, in the hands of a recorder: they can be dropped and made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from cputrain.memory.module_call import ModuleCall


STRIDE_BYTES = 8 << 20
"""Bytes of saved tensors after which the process's memory is looked at again."""


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a dense tensor; None for others, which are not counted."""
    return tensor.untyped_storage() if tensor.layout is torch.strided else None


class SavedBytes:
    """Bytes of all saved tensors that exist now; tensors of one storage count once.

    Storages that exist anyway, as those of parameters, are counted with no bytes.

    Args:
        check: Is called whenever so many bytes have been saved, or read in backward.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check, self._unchecked_bytes = check, 0
        self.existing: Set[int] = frozenset()
        """Addresses of such storages."""
        self.total = 0
        self.peak = 0
        self.largest = 0
        """Bytes of the largest storage so far."""
        self._num_uses: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def add(self, storage: torch.UntypedStorage) -> int:
        """Count a tensor of a storage; return the storage's address."""
        address = storage.data_ptr()
        count = self._num_uses.get(address, 0)
        if not count:
            num_bytes = self.new_size(storage)
            self.largest = max(self.largest, num_bytes)
            self.check(num_bytes)  # which may raise an error
            self._sizes[address] = num_bytes
            self.total += num_bytes
            self.peak = max(self.peak, self.total)
        self._num_uses[address] = count + 1
        return address

    def num_uses(self, address: int) -> int:
        """Return how many counted tensors have the storage at an address."""
        return self._num_uses.get(address, 0)

    def new_size(self, storage: torch.UntypedStorage) -> int:
        """Return the bytes that a storage is going to be counted with."""
        return 0 if storage.data_ptr() in self.existing else storage.nbytes()

    def size(self, address: int) -> int:
        """Return the bytes that the storage at an address counts with."""
        return self._sizes.get(address, 0)

    def check(self, num_bytes: int) -> None:
        """Check the process's memory beside a tensor of some size."""
        self._unchecked_bytes += num_bytes
        if self._unchecked_bytes >= STRIDE_BYTES:
            self._unchecked_bytes = 0
            self._check()

    def remove(self, address: int) -> None:
        """Count a tensor of the storage at an address no longer."""
        count = self._num_uses[address] - 1
        if count:
            self._num_uses[address] = count
        else:
            del self._num_uses[address]
            self.total -= self._sizes.pop(address)


class SavedTensor:
    """What autograd holds in place of a tensor that it saves.

    Autograd gives up its check for changes in place where hooks pack tensors: `unpack` has it.
    """

    __slots__ = (
        "__weakref__", "_count", "_origin", "_version", "address", "call", "dtype", "shape",
        "tensor",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, count: SavedBytes) -> None:
        self.call: ModuleCall | None = None
        """The call whose recomputation makes the tensor again, once it is dropped."""
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self._version = tensor._version
        node = tensor.grad_fn
        self._origin = None if node is None else (node.name(), tensor.output_nr)
        self._count = count
        self.address: int | None = None
        """Where its storage is; None if it is not counted."""
        self.tensor: torch.Tensor | None = None
        self._hold(tensor)

    def _hold(self, tensor: torch.Tensor) -> None:
        # without its graph: that would hold this object again
        self.tensor = tensor.detach()
        storage = storage_of(tensor)
        self.address = None if storage is None else self._count.add(storage)

    def drop(self) -> None:
        """Release the tensor, which a recomputation makes again."""
        if self.tensor is not None:
            self.tensor = None
            self._release()

    def restore(self, tensor: torch.Tensor) -> None:
        """Take the tensor that a recomputation has made."""
        if self.tensor is None:
            self._hold(tensor)
            self._version = tensor._version

    def unpack(self) -> torch.Tensor:
        """Return the tensor, made again if it was dropped.

        Raises:
            RuntimeError: It was changed in place since it was saved.
        """
        if self.tensor is None:
            assert self.call is not None
            self.call.recompute()
        tensor = self.tensor
        assert tensor is not None
        if tensor._version != self._version:
            raise RuntimeError(self._changed_text(tensor))
        if self.address is not None:
            self._count.check(tensor.nbytes)
        return tensor

    def _changed_text(self, tensor: torch.Tensor) -> str:
        """Return the message of autograd's own check."""
        of_node = ""
        if self._origin is not None:
            name, output = self._origin
            of_node = f", which is output {output} of {name},"
        return (
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor.type()} {list(tensor.shape)}]{of_node} is at version "
            f"{tensor._version}; expected version {self._version} instead. Hint: enable anomaly "
            "detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )

    def __del__(self) -> None:
        if self.tensor is not None:
            self._release()

    def _release(self) -> None:
        if self.address is not None:
            self._count.remove(self.address)
