"""Apply the kernels for all operators, and tell which were used, or why not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cputrain.runtime.batch_norm import BatchNorms
from cputrain.runtime.cross_entropy import CrossEntropies
from cputrain.runtime.depthwise import DepthwiseConvolutions
from cputrain.runtime.dropout import Dropouts
from cputrain.runtime.gelu import MODULE, ChunkedGelus

if TYPE_CHECKING:
    from types import ModuleType


class CKernels:
    """The kernels for all operators, which one setting switches."""

    def __init__(self) -> None:
        self._gelus = ChunkedGelus()
        self._losses = CrossEntropies()
        self._kinds = (BatchNorms(), self._losses, Dropouts(), DepthwiseConvolutions())
        if MODULE in sys.modules:
            self.patch(sys.modules[MODULE])

    def patch(self, activations: ModuleType) -> None:
        """Prepare for language models, as transformers' activations have just been loaded."""
        self._gelus.patch(activations)
        self._losses.remember_calls()

    def describe(self) -> str:
        used = [kind.name for kind in self._kinds if kind.num_computed]
        missing = [kind for kind in self._kinds if kind.problem]
        parts = [f"{' and '.join(used)} by kernels in C"] if used else []
        if missing:
            names = " and ".join(kind.name for kind in missing)
            parts.append(f"{names} as torch computes it ({missing[0].problem})")
        if self._gelus.num_computed:
            parts.append("GELU in chunks")
        return ", ".join(parts)

    def undo(self) -> None:
        for kind in (*self._kinds, self._gelus):
            kind.undo()
