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


def num_exact_threads(*, for_all: bool = False) -> int:
    """Return how many threads such a kernel takes when this thread calls it now.

    Args:
        for_all: Whether it works for all replicas, if one of them calls it.
    """
    num_threads = torch.get_num_threads()
    is_alone = for_all or threading.current_thread() is threading.main_thread()
    if _Cores.count is None or not is_alone:
        return num_threads  # (beside a replica run others, on all cores)
    return max(num_threads, _Cores.count())
