"""Tensors in shared memory sent by reference: the receiver opens the same memory through /proc.

torch sends the descriptor of such a tensor through a server thread, again for each message. Here a
message has the sender's process id and descriptor number, and the receiver opens the memory once
for as long as it uses it.
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

_MAX_RECENT = 8


class SharedStorage:
    """Pickles a storage in shared memory as a reference to its file."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    @staticmethod
    def can_hold(tensor: torch.Tensor) -> bool:
        """Return whether another process can open the tensor's memory through /proc."""
        if not tensor.is_shared() or get_sharing_strategy() != "file_descriptor":
            return False
        # a tensor that the user mapped from a file has no open descriptor
        return tensor.untyped_storage()._share_fd_cpu_()[0] >= 0

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        descriptor, size = self._storage._share_fd_cpu_()
        # as in torch's reductions: if it is sent back, this process finds its storage by the file
        shared_cache[fd_id(descriptor)] = StorageWeakRef(self._storage)
        return _open_storage, (os.getpid(), descriptor, fd_id(descriptor), size)


_recently_opened: deque[torch.UntypedStorage] = deque(maxlen=_MAX_RECENT)
"""Latest opened storages, kept mapped because the next messages likely refer to them again."""


def forget_opened_storages() -> None:
    """Drop the storages kept for later messages, so that their owner can free the memory."""
    _recently_opened.clear()


def has_opened_storages() -> bool:
    """Return whether storages are kept for later messages."""
    return bool(_recently_opened)


def _open_storage(pid: int, descriptor: int, file_id: tuple[int, int], size: int) -> torch.Tensor:
    """Return a tensor on a storage that another process has in shared memory."""
    storage = storage_from_cache(torch.UntypedStorage, file_id)
    if storage is None:
        try:
            local_descriptor = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ResourceError.of(error, "a shared tensor", "could not be opened") from error
        try:
            if fd_id(local_descriptor) != file_id:
                raise ResourceError(
                    "a shared tensor",
                    "must live as long as the task that uses it",
                    found="a tensor that its process has freed",
                    do="Keep a reference to the tensor until the result has arrived.",
                )
            storage = torch.UntypedStorage._new_shared_fd_cpu(local_descriptor, size)  # type: ignore[attr-defined]
        finally:
            os.close(local_descriptor)
        shared_cache[file_id] = StorageWeakRef(storage)
    _recently_opened.append(storage)
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
