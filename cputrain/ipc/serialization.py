"""Pickling with out-of-band buffers: tensors and arrays spill into an arena, the rest is pickled.

Protocol 5 of pickle takes buffers out of its stream. A CPU tensor is reduced to the bytes of its
storage and its dtype, shape and strides, at any depth of any picklable container; NumPy arrays
reduce themselves that way. Other objects are pickled as torch's ForkingPickler does.
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


class BlockLender(Protocol):
    """Interface of a writer for `pack`: `Writer`, or a wrapper of it."""

    def lend(self, raw: memoryview, *, in_place: bool = True, is_lasting: bool = True) -> BlockRef:
        """Lend a block with these bytes.

        Args:
            in_place: Whether bytes that are in a block already may be lent without a copy.
            is_lasting: False for a temporary copy, whose address is reused after the pickling.
        """

    def release(self, tokens: list[tuple[int, int]]) -> None:
        """Release blocks that are not sent after all."""


class _StorageBytes:
    """Bytes of a storage that one or several tensors use, pickled as one out-of-band buffer."""

    def __init__(
        self,
        flat: torch.Tensor,
        buffers: dict[int, pickle.PickleBuffer],
        temporaries: list[Any] | None = None,
    ) -> None:
        self._flat_tensor = flat
        self._buffers = buffers
        self._temporaries = temporaries

    def __reduce__(self) -> tuple[Any, ...]:
        raw = self._flat_tensor.numpy().data
        if self._temporaries is not None:
            self._temporaries.append(raw)  # it becomes the buffer's `obj`
        buffer = pickle.PickleBuffer(raw)
        self._buffers[id(buffer)] = buffer
        return _flat_tensor, (buffer,)


def _flat_tensor(buffer: Any) -> torch.Tensor:
    if not len(buffer):
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return tensor_on(buffer)


def tensor_on(buffer: Any) -> torch.Tensor:
    """Return a uint8 tensor on a buffer; the tensor's storage keeps the buffer alive.

    torch itself drops the buffer when `share_memory_` or its queues move the storage, while NumPy
    views of the old memory may still be in use.
    """
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    storage: Any = tensor.untyped_storage()
    storage._cputrain_buffer = buffer
    if isinstance(buffer, Lease):
        buffer.mark_tensor()
    return tensor


def _view_tensor(
    flat: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """Rebuild a tensor on the storage of a tensor of bytes."""
    # set_, as torch's own unpickling: autograd does not see the tensors as views of one another
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(flat.untyped_storage(), offset, shape, strides)


def _empty_tensor(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """Rebuild a tensor without elements."""
    storage = torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


_MAX_STRIDED_BYTES = 64 * mmap.PAGESIZE
_MAX_STRIDED_ELEMENTS = 64
"""Limits on the span and on the elements of a tensor that keeps its strides.

Rebuilding it touches the pages of its whole span, or a page for each element.
"""

_MAX_SPAN_BYTES = 1 << 30
"""Limit on the span of a tensor of few elements that keeps its strides."""


def _strided_tensor(
    flat: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """Rebuild a strided tensor from its elements; drop the strides if they span too much memory."""
    elements = flat.view(dtype).view(shape)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    is_light = elements.numel() <= _MAX_STRIDED_ELEMENTS
    if extent * dtype.itemsize > (_MAX_SPAN_BYTES if is_light else _MAX_STRIDED_BYTES):
        return elements
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu").copy_(elements)


def _leaf_tensor(tensor: torch.Tensor, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


_MAX_INLINE_ARRAY_BYTES = 1000
"""Bytes of the largest array that is pickled in-band.

It owns its memory when it is unpickled, and can be resized, as with multiprocessing's pickler.
"""


class SpillPickler(ForkingPickler):
    """Pickler that reduces tensors to out-of-band buffers and keeps shared memory shared.

    Args:
        tensor_buffers: Receives the buffers of tensors by their id; such a buffer may be lent in
            place.
        keep_in_band: Called with each buffer; returns True to keep it in the pickle.
        temporaries: Receives the arrays that are copied only to be pickled.
        shared: Receives the storages that are sent by reference; None to copy them as well.
        unions: Ranges by storage, from an earlier pass over the same objects.
    """

    def __init__(
        self,
        file: io.BytesIO,
        tensor_buffers: dict[int, pickle.PickleBuffer],
        keep_in_band: Callable[[pickle.PickleBuffer], bool],
        temporaries: list[Any],
        shared: list[torch.UntypedStorage] | None,
        unions: dict[int, tuple[ByteRange, ...]],
    ) -> None:
        super().__init__(file, 5, True, keep_in_band)
        self._temporaries = temporaries
        self._shared = shared
        self._unions = unions
        self._ranges: dict[int, StorageRanges] = {}
        self._tensor_buffers = tensor_buffers

    def reducer_override(self, value: Any) -> Any:
        """Reduce tensors, parameters, small arrays and read-only arrays; leave others to torch."""
        if type(value) is torch.Tensor:
            return self._reduce_leaf(value) if value.requires_grad else self._reduce(value)
        if type(value) is torch.nn.Parameter:
            return self._reduce_leaf(value)
        if (
            type(value) is np.ndarray
            and value.nbytes <= _MAX_INLINE_ARRAY_BYTES
            and value.dtype.isnative
        ):
            return value.__reduce__()  # (it would convert other byte orders to the native one)
        if type(value) is np.ndarray and not value.flags.writeable:
            writable = value.copy("A")  # as after a pipe, the receiver's array is writable
            self._temporaries.append(writable)
            return writable.__reduce_ex__(5)
        return NotImplemented

    def _reduce_leaf(self, tensor: torch.Tensor) -> Any:
        """Reduce a parameter, or a leaf that requires gradients."""
        if not tensor.is_leaf:
            return NotImplemented  # torch's reduction raises an error that explains it
        bare = tensor.detach()
        if self._reduce(bare) is NotImplemented:
            return NotImplemented
        return _leaf_tensor, (bare, type(tensor) is torch.nn.Parameter, tensor.requires_grad)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        """Reduce a CPU tensor to its storage or bytes; return NotImplemented for other tensors."""
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
            return _view_tensor, (
                SharedStorage(shared),
                tensor.dtype,
                tuple(tensor.shape),
                tensor.stride(),
                tensor.storage_offset(),
            )
        num_elements = tensor.numel()
        if not num_elements:
            return _empty_tensor, (tensor.dtype, tuple(tensor.shape), tensor.stride())
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
        if extent > 2 * num_elements:  # a sparse view of a larger storage
            span = ranges.containing(begin, end, width)
            if span is None:
                ranges.add_scattered(begin, end)
                return _strided_tensor, (
                    self._packed_elements(ranges, tensor),
                    tensor.dtype,
                    shape,
                    strides,
                )
        else:
            span = ranges.range_of(begin, end, width)
        flat = ranges.contents.get(span)
        if flat is None:
            if is_contiguous and num_elements > 1 and span.end - span.begin == end - begin:
                data = tensor.view(-1).view(torch.uint8)
            else:
                data = _bytes_of(storage, *span)
            flat = ranges.contents[span] = _StorageBytes(data, self._tensor_buffers)
        return _view_tensor, (flat, tensor.dtype, shape, strides, (begin - span.begin) // width)

    def _packed_elements(self, ranges: StorageRanges, tensor: torch.Tensor) -> _StorageBytes:
        """Return the bytes of a strided tensor's elements in a contiguous copy."""
        key = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        elements = ranges.contents.get(key)
        if elements is None:
            dense = tensor.contiguous()
            flat = _bytes_of(dense.untyped_storage(), 0, dense.nbytes)
            elements = ranges.contents[key] = _StorageBytes(
                flat, self._tensor_buffers, self._temporaries
            )
        return elements

    def unions(self) -> dict[int, tuple[ByteRange, ...]]:
        """Return the ranges that keep shared bytes shared, by storage; empty if no bytes are."""
        if not any(ranges.has_overlap for ranges in self._ranges.values()):
            return {}
        return {key: ranges.unions() for key, ranges in self._ranges.items()}


def _bytes_of(storage: torch.UntypedStorage, begin: int, end: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    return empty.set_(storage, begin, (end - begin,), (1,))


def pack(
    value: Any, writer: BlockLender | None, *, shared: list[torch.UntypedStorage] | None = None
) -> tuple[bytes, list[BlockRef]]:
    """Pickle a value; return the pickle, and the blocks of its out-of-band buffers.

    Args:
        writer: Lends the blocks; None keeps all buffers in the pickle.
        shared: Receives the storages in shared memory, which are then sent by reference; keep them
            alive until the other process has opened them. None copies them like other storages.
    """
    if is_plain(value):
        return pickle.dumps(value, 5), []
    data, blocks, unions = _pack_once(value, writer, shared, {})
    if unions:  # pickle again, with each union of overlapping tensors as one buffer
        if writer is not None:
            writer.release([block.token for block in blocks])
        data, blocks, _ = _pack_once(value, writer, shared, unions)
    return data, blocks


def _pack_once(
    value: Any,
    writer: BlockLender | None,
    shared: list[torch.UntypedStorage] | None,
    unions: dict[int, tuple[ByteRange, ...]],
) -> tuple[bytes, list[BlockRef], dict[int, tuple[ByteRange, ...]]]:
    """Pickle a value with the given unions; also return the unions that a next pass needs."""
    blocks: list[BlockRef] = []
    # only tensors are lent in place: an array that shares a tensor's memory is sent as a copy
    tensor_buffers: dict[int, pickle.PickleBuffer] = {}
    temporaries: list[Any] = []

    # does not refer to the pickler: in a reference cycle, blocks would wait for the collector
    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if writer is None or raw.nbytes < MIN_BLOCK_BYTES:
            return True
        try:
            in_place = id(buffer) in tensor_buffers
            is_lasting = not any(raw.obj is array for array in temporaries)
            blocks.append(writer.lend(raw, in_place=in_place, is_lasting=is_lasting))
        except ArenaFullError:
            return True
        return False

    file = io.BytesIO()
    pickler = SpillPickler(file, tensor_buffers, keep_in_band, temporaries, shared, unions)
    try:
        pickler.dump(value)
    except BaseException:
        if writer is not None:
            writer.release([block.token for block in blocks])
        raise
    return file.getvalue(), blocks, {} if unions else pickler.unions()


MAX_INLINE_BYTES = 16384
"""Bytes of the longest pickle that is sent through the pipe; a longer one spills into a block."""


def spill(data: bytes, blocks: list[BlockRef], writer: Writer) -> bytes:
    """Return the bytes for the pipe; a long pickle becomes the last of the blocks instead."""
    if len(data) > MAX_INLINE_BYTES:
        try:
            blocks.append(writer.lend(memoryview(data)))
        except ArenaFullError:
            return data
        return b""
    return data


def empty_in_arena(shape: Sequence[int], dtype: torch.dtype, writer: Writer | None) -> torch.Tensor:
    """Return an empty tensor in an arena block, so that sending it needs no copy, if one is free.

    Args:
        writer: Allocates the block; None, a full arena or a small size give ordinary memory.
    """
    size = math.prod(shape) * dtype.itemsize
    if writer is not None and size >= MIN_BLOCK_BYTES:
        try:
            flat = tensor_on(writer.lease(size))
        except ArenaFullError:
            pass  # `pack` copies it later
        else:
            return flat.view(dtype).view(tuple(shape))
    return torch.empty(shape, dtype=dtype, device="cpu")


_ATOM_TYPES = frozenset((int, float, bool, type(None)))


def is_plain(value: Any) -> bool:
    """Return whether a value holds only few atoms, so that plain `pickle.dumps` is cheapest."""
    kind = type(value)
    if kind is list or kind is tuple:
        return len(value) <= _MAX_PLAIN_ITEMS and all(map(is_plain, value))
    return is_atom(value) or (kind is dict and not value)


_MAX_PLAIN_ITEMS = 8
"""Items of the longest list or tuple that counts as plain."""


def is_atom(value: Any) -> bool:
    """Return whether a value is a number, None or a short string: immutable, without references."""
    kind = type(value)
    return kind in _ATOM_TYPES or (kind is str and len(value) < MIN_BLOCK_BYTES)


def unpack(data: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Unpickle what `pack` returned; tensors and arrays use the given buffers as their memory."""
    return pickle.loads(data, buffers=buffers)
