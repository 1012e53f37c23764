"""Replace functions of torch by kernels in C, which are loaded when a script first needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from cputrain.kernels.build import BuildError
from cputrain.runtime.openmp import parallel_functions
from cputrain.runtime.plain_tensors import PlainTensors
from cputrain.runtime.replaced_builtin import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from torch import Tensor

    from cputrain.runtime.patching import Patch
    from cputrain.runtime.replaced_builtin import Compute

K = TypeVar("K")


def is_in_memory_order(data: Tensor) -> bool:
    """Return whether a tensor is contiguous, or a batch of images in channels_last."""
    return data.is_contiguous() or (
        data.dim() == 4 and data.is_contiguous(memory_format=torch.channels_last)
    )


class KernelPatches(Generic[K]):
    """Kernels for one operator, its patches, and the number of calls that kernels computed.

    Args:
        name: The operator's name, as the report line has it.
        make: Makes the kernels from the addresses of OpenMP's functions; raises BuildError.
        is_right: Whether the kernels compute what torch's operators do.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[tuple[int, int, int]], K],
        is_right: Callable[[K], bool],
    ) -> None:
        self.name = name
        self._make, self._is_right = make, is_right
        self._tensors = PlainTensors(torch)
        self._patches: list[Patch] = []
        self.kernels: K | None = None
        """The kernels; None before they were needed."""
        self.problem = ""
        """Why there are no kernels; "" before they were needed."""
        self.num_computed = 0
        self.is_on = True
        """Whether kernels are used from now on."""

    def replace(self, places: Iterable[Any], name: str, compute: Compute) -> None:
        """Replace a function in all places that have it."""
        self._patches += replace(places, name, compute)

    def load(self) -> K | None:
        """Return the kernels, or None if they cannot be had here."""
        if self.kernels is None and not self.problem:
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
                self.kernels = kernels
            else:
                self.problem = "the compiled kernels are wrong"
        return self.kernels

    def undo(self) -> None:
        self.is_on = False  # where another patch is above one of these, that stays
        for patch in self._patches:
            patch.undo()
