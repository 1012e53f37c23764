"""Tensors that lie in shared memory already: the other process opens the same memory.

torch sends such a tensor by a descriptor, through a server thread, each time anew. Here only its
place is told, and the other process opens it through /proc, once, for as long as it is in use.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import StorageWeakRef, fd_id, shared_cache, storage_from_cache

from cputrain.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT = 8


class SharedStorage:
    """Stands for a storage on its way."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    @staticmethod
    def can_hold(tensor: torch.Tensor) -> bool:
        """Whether this tensor can be opened elsewhere, by us."""
        if not tensor.is_shared() or get_sharing_strategy() != "file_descriptor":
            return False
        # a tensor that is mapped from a file of the user's has no descriptor any more
        return tensor.untyped_storage()._share_fd_cpu_()[0] >= 0

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        descriptor, size = self._storage._share_fd_cpu_()
        # as torch's own: a storage that is opened here, from elsewhere, is known by its file
        shared_cache[fd_id(descriptor)] = StorageWeakRef(self._storage)
        return _opened, (os.getpid(), descriptor, fd_id(descriptor), size)


_kept: deque[torch.UntypedStorage] = deque(maxlen=_KEPT)
"""Opened lately, and likely to come again."""


def forget_opened_storages() -> None:
    """Nothing comes for a while: keep no memory that the other process may want to be rid of."""
    _kept.clear()


def has_opened_storages() -> bool:
    """Whether there is anything to forget."""
    return bool(_kept)


def _opened(pid: int, descriptor: int, file: tuple[int, int], size: int) -> torch.Tensor:
    storage = storage_from_cache(torch.UntypedStorage, file)
    if storage is None:
        try:
            own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ResourceError.of(error, "a shared tensor", "could not be opened") from error
        try:
            if fd_id(own) != file:
                raise ResourceError(
                    "a shared tensor",
                    "must live as long as the task that uses it",
                    found="that the process which made it has let go of it",
                    do="Keep a reference to it until the result has come.",
                )
            storage = torch.UntypedStorage._new_shared_fd_cpu(own, size)  # type: ignore[attr-defined]
        finally:
            os.close(own)
        shared_cache[file] = StorageWeakRef(storage)
    _kept.append(storage)
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
