"""What every worker needs, pickled once, while the first of them starts.

multiprocessing pickles a process's arguments for each process and writes them into a pipe that the
child empties only once it has imported its modules: workers start one after another. Here a process
is started with little more than the descriptor of anonymous memory; what it needs is pickled into
that memory meanwhile, and all workers read it at the same time.
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
from cputrain.data.sample_store import Board
from cputrain.ipc import create_memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.data.sample_sharing import Replacement


class Payload:
    """Arguments by their place, in anonymous memory."""

    _close = staticmethod(os.close)

    def __init__(self, descriptor: int, replacements: Sequence[Replacement] = ()) -> None:
        self._descriptor = descriptor
        self._replacements = replacements
        self._size = 0
        self._apart: list[Any] = []

    @classmethod
    def reserve(cls, replacements: Sequence[Replacement]) -> Payload | None:
        """An empty one; None if the system refuses."""
        try:
            return cls(create_memfd(), replacements)
        except OSError:
            return None

    def fill(self, arguments: dict[int, Any]) -> bool:
        """Whether they could be pickled; if not, multiprocessing may try, and tell."""
        file = io.BytesIO()
        pickler = _Pickler(file, self._replacements)
        try:
            pickler.dump(arguments)
            data = file.getbuffer()
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written : written + (1 << 30)])
            self._size, self._apart = len(data), pickler.apart
        except Exception:  # whatever it is, multiprocessing raises it where torch expects it
            return False
        return True

    def notice(self) -> bytes:
        """What a worker must be told to read it; once for each worker."""
        return bytes(ForkingPickler.dumps((self._size, self._apart)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self._descriptor),)

    def load(self, notice: bytes) -> dict[int, Any]:
        """The arguments, in a worker."""
        size, apart = ForkingPickler.loads(notice)
        with mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ) as data:
            return dict(_Unpickler(data, apart).load())

    def close(self) -> None:
        """Forget it; workers that have been started have their own descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close


def _receive(duplicate: Any) -> Payload:
    return Payload(duplicate.detach())


class _Pickler(ForkingPickler):
    """Leaves out what is sent by a descriptor: each worker is given its own."""

    def __init__(self, file: io.BytesIO, replacements: Sequence[Replacement]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.apart: list[Any] = []
        self._shared: dict[int, dict[str, Any]] = {}
        """By the identity of an object: attributes that hold samples in shared memory."""
        for holder, names, _, shared in replacements:
            if holder is not None:
                self._shared.setdefault(id(holder), {}).update(dict.fromkeys(names, shared))

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, _APART):
            self.apart.append(thing)
            return _Apart, (len(self.apart) - 1,)
        shared = self._shared.get(id(thing))
        if shared is not None:
            make, args, state, *others = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            attributes, *slots = state if type(state) is tuple else (state,)
            attributes = {**attributes, **shared}
            return make, args, (attributes, *slots) if slots else attributes, *others
        return NotImplemented


_APART = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    socket.socket,
    connection.Connection,
    SampleMemory,
    SampleFile,
    Board,
)
"""What is sent by a descriptor. What only a process's start can share, as locks, says so itself."""


def _Apart(place: int) -> Any:  # noqa: N802
    raise pickle.UnpicklingError(f"part {place} of a payload, read outside of it")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: mmap.mmap, apart: list[Any]) -> None:
        super().__init__(data)
        self._apart = apart

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == "_Apart":
            return self._apart.__getitem__
        return super().find_class(module, name)
