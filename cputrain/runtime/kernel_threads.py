"""Run a kernel on one thread, or on all, whatever number of threads torch has.

torch's fused optimizer kernels divide every tensor of more than 16 elements among all threads, and
waking them costs more than such a tensor. Its other operators do so from 32768 elements on. As
`torch.set_num_threads` also empties oneDNN's caches, `omp_set_num_threads` is called directly: it
applies to the calling thread alone.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager, suppress
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

GRAIN_SIZE = 32768
"""Elements from which on torch's own elementwise operators use several threads:
`at::internal::GRAIN_SIZE`."""


class KernelThreads:
    """Sets the number of OpenMP threads for parallel regions of the calling thread."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._set: Callable[[int], None] | None = None

    def can_limit(self) -> bool:
        """Return whether `single` works here; False with another backend than OpenMP."""
        self._set = _find_setter(self._torch)
        return self._set is not None

    @contextmanager
    def single(self) -> Iterator[None]:
        """Run kernels of the calling thread on that thread alone, within the context."""
        num_threads = self._torch.get_num_threads()
        if self._set is None or num_threads == 1:
            yield
            return
        self._set(1)
        try:
            yield
        finally:
            self._set(num_threads)

    def num_exact(self) -> int:
        """Return how many threads `exact` gives to the calling thread."""
        from cputrain.kernels.threads import num_exact_threads

        return num_exact_threads()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Run kernels whose results do not depend on it on as many threads as they may have."""
        num_threads, count = self._torch.get_num_threads(), self.num_exact()
        if count == num_threads or not self.can_limit() or self._set is None:
            yield
            return
        self._set(count)
        try:
            yield
        finally:
            self._set(num_threads)


@cache
def _find_setter(torch: ModuleType) -> Callable[[int], None] | None:
    num_threads = torch.get_num_threads()
    library = os.path.join(os.path.dirname(str(torch.__file__)), "lib", "libtorch_cpu.so")
    # torch's own OpenMP first; a preloaded one takes precedence in the process
    for path in (library, None):
        with suppress(OSError, AttributeError):  # another system, or no OpenMP
            setter: Callable[[int], None] = ctypes.PyDLL(path).omp_set_num_threads
            setter(1)
            limited = torch.get_num_threads()
            setter(num_threads)
            if limited == 1 and torch.get_num_threads() == num_threads:
                return setter
    return None
