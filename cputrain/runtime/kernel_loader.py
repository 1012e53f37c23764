"""Load and examine kernels in C when a script first needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from cputrain.kernels.build import BuildError
from cputrain.runtime.openmp import parallel_functions

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")


class KernelLoader(Generic[K]):
    """The kernels of a kind, once they are needed.

    Args:
        make: Makes them from the addresses of OpenMP's functions; raises BuildError.
        is_right: Whether they compute what torch's operators do.
    """

    def __init__(
        self, make: Callable[[tuple[int, int, int]], K], is_right: Callable[[K], bool]
    ) -> None:
        self._make, self._is_right = make, is_right
        self._kernels: K | None = None
        self.problem = ""
        """Why there are none; "" before they were needed."""

    def load(self) -> K | None:
        """Return the kernels, or None if they cannot be had here."""
        if self._kernels is None and not self.problem:
            openmp = parallel_functions()
            if openmp is None:
                self.problem = "torch's threads are not those of OpenMP"
                return None
            try:
                kernels = self._make(openmp)
            except BuildError as error:
                self.problem = str(error)
                return None
            if self._is_right(kernels):
                self._kernels = kernels
            else:
                self.problem = "the compiled kernels are wrong"
        return self._kernels
