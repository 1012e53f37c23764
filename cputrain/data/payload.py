"""What every worker needs, pickled once and read by all of them at the same time.

multiprocessing pickles a process's arguments for each process and writes them into a pipe that the
child empties only once it has imported its modules: workers start one after another. Here the bytes
lie in anonymous memory, and the start of a process carries little more than its descriptor.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
from multiprocessing import connection, reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch


class Payload:
    """Arguments by their place, in anonymous memory."""

    def __init__(self, descriptor: int, size: int, apart: list[Any]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._apart = apart

    @classmethod
    def of(cls, arguments: dict[int, Any]) -> Payload | None:
        """None if they cannot be pickled this way: multiprocessing then tries, and tells."""
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump(arguments)
        except Exception:  # whatever it is, multiprocessing raises it where torch expects it
            return None
        descriptor = -1
        try:
            descriptor = os.memfd_create("cputrain", os.MFD_CLOEXEC)
            data = file.getbuffer()
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written : written + (1 << 30)])
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            return None
        return cls(descriptor, len(data), pickler.apart)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self._descriptor), self._size, self._apart)

    def load(self) -> dict[int, Any]:
        """The arguments, in a worker."""
        with mmap.mmap(self._descriptor, self._size, prot=mmap.PROT_READ) as data:
            return dict(_Unpickler(data, self._apart).load())

    def close(self) -> None:
        """Forget it; workers that have been started have their own descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _receive(duplicate: Any, size: int, apart: list[Any]) -> Payload:
    return Payload(duplicate.detach(), size, apart)


class _Pickler(ForkingPickler):
    """Leaves out what is shared by a descriptor or a lock: that goes with each process's start."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.apart: list[Any] = []

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(
            thing,
            (
                torch.Tensor,
                torch.UntypedStorage,
                torch.TypedStorage,
                socket.socket,
                connection.Connection,
            ),
        ) or (
            not isinstance(thing, type)
            and type(thing).__module__.partition(".")[0] == "multiprocessing"
        ):
            self.apart.append(thing)
            return _Apart, (len(self.apart) - 1,)
        return NotImplemented


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
