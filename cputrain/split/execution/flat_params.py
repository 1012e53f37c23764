"""Copies of tensors on another device, in one flat buffer (and one transfer) per dtype.

A model has hundreds of small parameters: parameters of a dtype lie side by side in one buffer on
the other device, and are packed into one buffer before they are sent. Gradients come back likewise.
"""

from __future__ import annotations

import threading
from weakref import ref

import torch

from cputrain.split.devices import PINNING_DEVICES, has_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Tensor = torch.Tensor


class FlatParams:
    """Copies of some tensors on another device, as views of one buffer per dtype."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        self._tensors = _unique(tensors)
        self._signature = _signature(self._tensors)
        self._lock = threading.Lock()
        self._calls: list[ref[object]] = []
        """Calls the tensors were sent for that are still alive: their backward may come."""
        self.values: dict[int, Tensor] = {}
        """Copies on the other device, by the id of the source tensor."""
        self._sent_buffers: set[int] = set()
        """Indices of the buffers that were sent."""
        self._buffers: list[tuple[list[Tensor], Tensor, list[Tensor]]] = []
        """Source tensors, their flat buffer, and two packed buffers: last sent, and next."""
        for pairs in _by_dtype(enumerate(self._tensors)):
            same_dtype = [tensor for _, tensor in pairs]
            count = sum(tensor.numel() for tensor in same_dtype)
            dtype, home = same_dtype[0].dtype, same_dtype[0].device
            home_buffers = [_flat_buffer(count, dtype, home, device) for _ in range(2)]
            device_buffer = _flat_buffer(count, dtype, device, home)
            self._buffers.append((same_dtype, device_buffer, home_buffers))
            ids = (id(tensor) for tensor in same_dtype)
            self.values.update(zip(ids, _unflatten(device_buffer, same_dtype), strict=True))

    def is_of(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether these are the source tensors, with unchanged dtype, shape and strides."""
        return _signature(_unique(tensors)) == self._signature

    def update(self, call: object = None) -> None:
        """Send the current values; once for each `call`.

        Other replicas of that call wait until the values have arrived (from a GPU: are enqueued).
        Unchanged buffers are not written again while the graph of an earlier call may need them.
        """
        with self._lock, torch.no_grad():
            self._calls = [item for item in self._calls if item() is not None]
            if call is not None and any(item() is call for item in self._calls):
                return
            should_compare = call is None or self._calls
            for index, (tensors, device_buffer, buffers) in enumerate(self._buffers):
                sent, spare = buffers
                torch.cat([_flat(item.detach()) for item in tensors], out=spare)
                if should_compare and index in self._sent_buffers and torch.equal(spare, sent):
                    continue
                self._sent_buffers.discard(index)  # until the copy has succeeded
                # (a copy to the CPU on a side stream is waited for there)
                is_async = call is not None and has_streams(spare.device)
                device_buffer.copy_(
                    spare, non_blocking=is_async or device_buffer.device.type != "cpu"
                )
                buffers.reverse()
                self._sent_buffers.add(index)
            if call is not None:
                self._calls.append(ref(call))


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _signature(tensors: Sequence[Tensor]) -> list[tuple[object, ...]]:
    return [
        (id(tensor), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        for tensor in tensors
    ]


class Packed:
    """Tensors packed into one flat buffer per dtype on their device, ready to be fetched."""

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        home: torch.device,
        memory: dict[torch.dtype, Tensor] | None = None,
    ) -> None:
        """Pack for `home`, reusing buffers from `memory` that fit; `fetch` returns them to it."""
        self._memory = {} if memory is None else memory
        self._count = len(tensors)
        self._unpacked = {
            index: tensor
            for index, tensor in enumerate(tensors)
            if tensor is not None and tensor.layout is not torch.strided
        }
        self._buffers: list[tuple[list[int], list[Tensor], Tensor]] = []
        """Indices, tensors, and the flat buffer they are packed into."""
        dense = [
            (index, tensor)
            for index, tensor in enumerate(tensors)
            if tensor is not None and index not in self._unpacked
        ]
        with torch.no_grad():
            for pairs in _by_dtype(dense):
                indices, same_dtype = [index for index, _ in pairs], [tensor for _, tensor in pairs]
                count, dtype = sum(tensor.numel() for tensor in same_dtype), same_dtype[0].dtype
                flat = self._memory.pop(dtype, None)  # no other pack uses the buffer meanwhile
                if flat is None or flat.numel() != count or flat.device != same_dtype[0].device:
                    flat = _flat_buffer(count, dtype, same_dtype[0].device, home)
                torch.cat([_flat(tensor) for tensor in same_dtype], out=flat)
                self._buffers.append((indices, same_dtype, flat))

    def fetch(self, receive: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """Copy the buffers with `receive` and return the tensors cut from them."""
        result: list[Tensor | None] = [None] * self._count
        for indices, same_dtype, flat in self._buffers:
            for index, view in zip(indices, _unflatten(receive(flat), same_dtype), strict=True):
                result[index] = view
            self._memory[flat.dtype] = flat  # reused by a pack that has waited for this one
        for index, tensor in self._unpacked.items():
            result[index] = receive(tensor)
        return result


def _by_dtype(pairs: Iterable[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """Group (index, tensor) pairs by dtype."""
    result: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    for index, tensor in pairs:
        result.setdefault(tensor.dtype, []).append((index, tensor))
    return list(result.values())


def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    views, offset = [], 0
    for tensor in tensors:
        views.append(_view_like(flat.narrow(0, offset, tensor.numel()), tensor))
        offset += tensor.numel()
    return views


def _flat(tensor: Tensor) -> Tensor:
    """Return a one-dimensional view in memory order, or a copy of a tensor with gaps."""
    if _is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _view_like(flat: Tensor, like: Tensor) -> Tensor:
    """View a flat buffer with the shape and strides of `like`."""
    if _is_dense(like):
        return flat.as_strided(like.size(), like.stride())
    return flat.view(like.size())


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the tensor fills its memory without gaps, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda dim: dim[1]
    ):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


def _flat_buffer(
    count: int, dtype: torch.dtype, device: torch.device, peer: torch.device
) -> Tensor:
    """Allocate a flat buffer for transfers from or to the other device, pinned where that helps."""
    should_pin = device.type == "cpu" and peer.type in PINNING_DEVICES
    return torch.empty(count, dtype=dtype, device=device, pin_memory=should_pin)
