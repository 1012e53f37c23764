"""How many threads a kernel takes whose result does not depend on their number."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class _Cores:
    """Counts the cores that such a kernel may use; None if it has as many threads as all others."""

    count: Callable[[], int] | None = None


def use_cores(count: Callable[[], int] | None) -> None:
    """Give such kernels a thread for each core where torch has one for the sake of its results.

    Args:
        count: Counts the cores; None for as many threads as torch has.
    """
    _Cores.count = count


def num_exact_threads() -> int:
    """Return how many threads such a kernel takes when this thread calls it now."""
    num_threads = torch.get_num_threads()
    if _Cores.count is None or threading.current_thread() is not threading.main_thread():
        return num_threads  # (beside the main thread run those of replicas, on all cores)
    return max(num_threads, _Cores.count())
