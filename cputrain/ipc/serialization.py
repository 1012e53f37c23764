"""Batches as bytes: what is large stays in an arena, the rest is pickled.

Pickle's protocol 5 takes large buffers out of its stream. A tensor becomes the bytes of its
storage and a description of the view, at any depth, in any container that can be pickled; a NumPy
array does so by itself. Whatever else can be sent between processes goes the way torch sends it.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from cputrain.ipc.arena import MIN_BLOCK_BYTES, ArenaFullError, BlockRef, Lease, Writer
from cputrain.ipc.shared_tensors import SharedStorage
from cputrain.ipc.storage_ranges import ByteRange, StorageRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Writes(Protocol):
    """What `pack` asks of a writer."""

    def lend(self, raw: memoryview, *, in_place: bool = True, is_lasting: bool = True) -> BlockRef:
        """A block that holds these bytes; `is_lasting` unless they were copied just now."""

    def release(self, tokens: list[tuple[int, int]]) -> None:
        """These have not been sent."""


class _Bytes:
    """The bytes under one or several tensors, written once."""

    def __init__(
        self,
        flat: torch.Tensor,
        buffers: dict[int, pickle.PickleBuffer],
        copies: list[Any] | None = None,
    ) -> None:
        self._flat = flat
        self._buffers = buffers
        self._copies = copies

    def __reduce__(self) -> tuple[Any, ...]:
        raw = self._flat.numpy().data
        if self._copies is not None:
            self._copies.append(raw)  # which the buffer names as its object
        buffer = pickle.PickleBuffer(raw)
        self._buffers[id(buffer)] = buffer
        return _flat, (buffer,)


def _flat(buffer: Any) -> torch.Tensor:
    if not len(buffer):
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return tensor_on(buffer)


def tensor_on(buffer: Any) -> torch.Tensor:
    """Return a tensor of bytes on a buffer, which lives as long as the tensor's storage.

    torch lets go of the buffer when it moves the storage into other memory, as `share_memory_` and
    its queues do, and NumPy views of the storage would lie on nothing.
    """
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    storage: Any = tensor.untyped_storage()
    storage._cputrain_buffer = buffer
    if isinstance(buffer, Lease):
        buffer.mark_tensor()
    return tensor


def _view(
    flat: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    # as torch rebuilds tensors: to autograd, one is no view of another
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(flat.untyped_storage(), offset, shape, strides)


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    storage = torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


_MAX_STRIDED_BYTES = 64 * mmap.PAGESIZE
_MAX_STRIDED_ELEMENTS = 64
"""What a strided tensor may span, or have, to keep its strides: each page of it is touched."""

_MAX_SPAN_BYTES = 1 << 30


def _strided(
    flat: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    elements = flat.view(dtype).view(shape)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    is_light = elements.numel() <= _MAX_STRIDED_ELEMENTS
    if extent * dtype.itemsize > (_MAX_SPAN_BYTES if is_light else _MAX_STRIDED_BYTES):
        return elements
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu").copy_(elements)


def _leaf(tensor: torch.Tensor, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


_MAX_OWNED_BYTES = 1000
"""Of an array that owns its memory when it is unpickled, and can be resized, with any protocol
before the fifth, which multiprocessing uses."""


class SpillPickler(ForkingPickler):
    def __init__(
        self,
        file: io.BytesIO,
        of_tensors: dict[int, pickle.PickleBuffer],
        apart: Callable[[pickle.PickleBuffer], bool],
        copies: list[Any],
        shared: list[torch.UntypedStorage] | None,
        unions: dict[int, tuple[ByteRange, ...]],
    ) -> None:
        super().__init__(file, 5, True, apart)
        self._copies = copies
        self._shared = shared
        self._unions = unions
        self._ranges: dict[int, StorageRanges] = {}
        self._of_tensors = of_tensors

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor:
            return self._reduce_leaf(thing) if thing.requires_grad else self._reduce(thing)
        if type(thing) is torch.nn.Parameter:
            return self._reduce_leaf(thing)
        if type(thing) is np.ndarray and thing.nbytes <= _MAX_OWNED_BYTES and thing.dtype.isnative:
            return thing.__reduce__()  # (which would turn other byte orders into the machine's)
        if type(thing) is np.ndarray and not thing.flags.writeable:
            copied = thing.copy("A")  # what comes out of a pipe can be written to
            self._copies.append(copied)
            return copied.__reduce_ex__(5)
        return NotImplemented

    def _reduce_leaf(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_leaf:
            return NotImplemented  # torch says why it must not be sent
        bare = tensor.detach()
        if self._reduce(bare) is NotImplemented:
            return NotImplemented
        return _leaf, (bare, type(tensor) is torch.nn.Parameter, tensor.requires_grad)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if (
            tensor.device.type != "cpu"
            or tensor.layout is not torch.strided
            or tensor.requires_grad
            or tensor.is_quantized
            or tensor.is_nested
        ):
            return NotImplemented
        tensor = tensor.resolve_conj().resolve_neg()
        if self._shared is not None and SharedStorage.can_hold(tensor):
            shared = tensor.untyped_storage()
            self._shared.append(shared)
            return _view, (
                SharedStorage(shared),
                tensor.dtype,
                tuple(tensor.shape),
                tensor.stride(),
                tensor.storage_offset(),
            )
        num_elements = tensor.numel()
        if not num_elements:
            return _empty, (tensor.dtype, tuple(tensor.shape), tensor.stride())
        shape, strides, width = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        extent, is_contiguous = num_elements, tensor.is_contiguous()
        if not is_contiguous:
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        storage = tensor.untyped_storage()
        key = storage._cdata
        ranges = self._ranges.get(key)
        if ranges is None:
            ranges = self._ranges[key] = StorageRanges(storage, self._unions.get(key, ()))
        begin = int(tensor.storage_offset()) * width
        end = begin + extent * width
        if extent > 2 * num_elements:  # a strided view of something large
            span = ranges.containing(begin, end, width)
            if span is None:
                ranges.add_scattered(begin, end)
                return _strided, (self._elements_of(ranges, tensor), tensor.dtype, shape, strides)
        else:
            span = ranges.range_of(begin, end, width)
        flat = ranges.contents.get(span)
        if flat is None:
            if is_contiguous and num_elements > 1 and span.end - span.begin == end - begin:
                data = tensor.view(-1).view(torch.uint8)
            else:
                data = _bytes_of(storage, *span)
            flat = ranges.contents[span] = _Bytes(data, self._of_tensors)
        return _view, (flat, tensor.dtype, shape, strides, (begin - span.begin) // width)

    def _elements_of(self, ranges: StorageRanges, tensor: torch.Tensor) -> _Bytes:
        """Stand for the elements of a strided tensor, put side by side."""
        key = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        elements = ranges.contents.get(key)
        if elements is None:
            dense = tensor.contiguous()
            flat = _bytes_of(dense.untyped_storage(), 0, dense.nbytes)
            elements = ranges.contents[key] = _Bytes(flat, self._of_tensors, self._copies)
        return elements

    def unions(self) -> dict[int, tuple[ByteRange, ...]]:
        """Return the ranges of each storage that keep together what tensors share, if any do."""
        if not any(ranges.has_overlap for ranges in self._ranges.values()):
            return {}
        return {key: ranges.unions() for key, ranges in self._ranges.items()}


def _bytes_of(storage: torch.UntypedStorage, begin: int, end: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    return empty.set_(storage, begin, (end - begin,), (1,))


def pack(
    thing: Any, writer: Writes | None, *, shared: list[torch.UntypedStorage] | None = None
) -> tuple[bytes, list[BlockRef]]:
    """Return the pickled bytes, and the blocks that hold the large buffers.

    Args:
        writer: Lends the blocks; without one, all buffers are in the pickle.
        shared: Has tensors in shared memory stay there. Their storages are appended to it, and must
            live until the other process has opened them. Without it, they are copied as others are.
    """
    if is_plain(thing):
        return pickle.dumps(thing, 5), []
    data, lent, unions = _pack_once(thing, writer, shared, {})
    if unions:  # once more, so that tensors which share memory still do
        if writer is not None:
            writer.release([one.token for one in lent])
        data, lent, _ = _pack_once(thing, writer, shared, unions)
    return data, lent


def _pack_once(
    thing: Any,
    writer: Writes | None,
    shared: list[torch.UntypedStorage] | None,
    unions: dict[int, tuple[ByteRange, ...]],
) -> tuple[bytes, list[BlockRef], dict[int, tuple[ByteRange, ...]]]:
    lent: list[BlockRef] = []
    # these may stay where they are; an array beside its tensor is sent on its own
    of_tensors: dict[int, pickle.PickleBuffer] = {}
    copies: list[Any] = []  # made only to be sent

    # refers to no packer: in a cycle with one, blocks would wait for the collector
    def apart(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if writer is None or raw.nbytes < MIN_BLOCK_BYTES:
            return True
        try:
            in_place = id(buffer) in of_tensors
            is_lasting = not any(raw.obj is one for one in copies)
            lent.append(writer.lend(raw, in_place=in_place, is_lasting=is_lasting))
        except ArenaFullError:
            return True
        return False

    file = io.BytesIO()
    packer = SpillPickler(file, of_tensors, apart, copies, shared, unions)
    try:
        packer.dump(thing)
    except BaseException:
        if writer is not None:
            writer.release([one.token for one in lent])
        raise
    return file.getvalue(), lent, {} if unions else packer.unions()


DIRECT = 16384
"""Bytes of a pickle that go through the pipe; a longer one lies in the arena."""


def spill(data: bytes, lent: list[BlockRef], writer: Writer) -> bytes:
    """A pickle as it goes through the pipe: nothing, if it lies in the last block from now on."""
    if len(data) > DIRECT:
        try:
            lent.append(writer.lend(memoryview(data)))
        except ArenaFullError:
            return data  # then all of it goes through the pipe
        return b""
    return data


def room_for(shape: Sequence[int], dtype: torch.dtype, writer: Writer | None) -> torch.Tensor:
    """A tensor to be sent, where it will not have to be copied to, if there is such a place."""
    size = math.prod(shape) * dtype.itemsize
    if writer is not None and size >= MIN_BLOCK_BYTES:
        try:
            flat = tensor_on(writer.lease(size))
        except ArenaFullError:
            pass  # it is copied later, by another way
        else:
            return flat.view(dtype).view(tuple(shape))
    return torch.empty(shape, dtype=dtype, device="cpu")


_NUMBERS = frozenset((int, float, bool, type(None)))


def is_plain(thing: Any) -> bool:
    """Whether this is so small a thing that a pickler of our own would cost more than the rest."""
    kind = type(thing)
    if kind is list or kind is tuple:
        return len(thing) <= _FEW and all(map(is_plain, thing))
    return is_atom(thing) or (kind is dict and not thing)


_FEW = 8


def is_atom(thing: Any) -> bool:
    """Whether it never changes, holds nothing and is small: several can share a pickle."""
    kind = type(thing)
    return kind in _NUMBERS or (kind is str and len(thing) < MIN_BLOCK_BYTES)


def unpack(data: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """What was packed; tensors and arrays lie on the buffers given."""
    return pickle.loads(data, buffers=buffers)
