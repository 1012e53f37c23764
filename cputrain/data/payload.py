"""The arguments of spawned workers, pickled once into shared memory while the first worker starts.

multiprocessing pickles a process's arguments for each process, and writes them into a pipe that the
child reads only after it has imported its modules: workers start one after another. Here a process
starts with the descriptor of anonymous memory instead. The arguments are pickled into that memory
meanwhile, and all workers read it at the same time.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
from multiprocessing import connection, reduction
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch

from cputrain.data.sample_files import SampleFile
from cputrain.data.sample_memory import SampleMemory
from cputrain.data.sample_store import SharedCacheState
from cputrain.ipc import create_memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.data.sample_sharing import Replacement


class WorkerPayload:
    """Pickled arguments of the worker loop, by index, in anonymous memory.

    Args:
        descriptor: Of the memory.
        replacements: Containers that are pickled as shared samples.
    """

    _close = staticmethod(os.close)

    def __init__(self, descriptor: int, replacements: Sequence[Replacement] = ()) -> None:
        self._descriptor = descriptor
        self._replacements = replacements
        self._size = 0
        self._out_of_band_objects: list[Any] = []

    @classmethod
    def create(cls, replacements: Sequence[Replacement]) -> WorkerPayload | None:
        """Create an empty payload; return None if the system refuses the memory."""
        try:
            return cls(create_memfd(), replacements)
        except OSError:
            return None

    def fill(self, arguments: dict[int, Any]) -> bool:
        """Pickle the arguments into the memory; return False if that fails."""
        file = io.BytesIO()
        pickler = _Pickler(file, self._replacements)
        try:
            pickler.dump(arguments)
            data = file.getbuffer()
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written : written + (1 << 30)])
            self._size, self._out_of_band_objects = len(data), pickler.out_of_band
        except Exception:  # multiprocessing pickles them then, and raises the error in `start`
            return False
        return True

    def message(self) -> bytes:
        """Return the message that a worker needs for `load`; call it once for each worker."""
        return bytes(ForkingPickler.dumps((self._size, self._out_of_band_objects)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self._descriptor),)

    def load(self, message: bytes) -> dict[int, Any]:
        """Return the arguments, in a worker."""
        size, out_of_band = ForkingPickler.loads(message)
        with mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ) as data:
            return dict(_Unpickler(data, out_of_band).load())

    def close(self) -> None:
        """Close the descriptor of this process."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close


def _receive(duplicate: Any) -> WorkerPayload:
    return WorkerPayload(duplicate.detach())


class _Pickler(ForkingPickler):
    """A pickler that leaves out objects with a descriptor, as each worker needs its own."""

    def __init__(self, file: io.BytesIO, replacements: Sequence[Replacement]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.out_of_band: list[Any] = []
        self._shared: dict[int, dict[str, Any]] = {}
        """The attributes that are replaced by shared samples, by the `id` of their object."""
        for holder, names, _, shared in replacements:
            if holder is not None:
                self._shared.setdefault(id(holder), {}).update(dict.fromkeys(names, shared))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _OUT_OF_BAND_TYPES):
            self.out_of_band.append(value)
            return _out_of_band, (len(self.out_of_band) - 1,)
        shared = self._shared.get(id(value))
        if shared is not None:
            constructor, args, state, *rest = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            attributes, *slots = state if type(state) is tuple else (state,)
            attributes = {**attributes, **shared}
            return constructor, args, (attributes, *slots) if slots else attributes, *rest
        return NotImplemented


_OUT_OF_BAND_TYPES = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    socket.socket,
    connection.Connection,
    SampleMemory,
    SampleFile,
    SharedCacheState,
)
"""Types that are pickled in each worker's message, as they contain a descriptor.

Objects that can be shared only while a process starts, such as locks, raise an error themselves.
"""


def _out_of_band(index: int) -> Any:
    """Stand in a pickle for an object of the message; `_Unpickler` resolves it."""
    raise pickle.UnpicklingError(f"object {index} of a worker's payload, read without its message")


class _Unpickler(pickle.Unpickler):
    """An unpickler that puts the objects of the message in their places."""

    def __init__(self, data: mmap.mmap, out_of_band: list[Any]) -> None:
        super().__init__(data)
        self._out_of_band_objects = out_of_band

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == "_out_of_band":
            return self._out_of_band_objects.__getitem__
        return super().find_class(module, name)
