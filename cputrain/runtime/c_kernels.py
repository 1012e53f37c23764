"""Apply the kernels for all operators, and tell which were used, or why not."""

from __future__ import annotations

from cputrain.runtime.batch_norm import BatchNorms
from cputrain.runtime.cross_entropy import CrossEntropies
from cputrain.runtime.depthwise import DepthwiseConvolutions
from cputrain.runtime.dropout import Dropouts


class CKernels:
    """The kernels for all operators, which one setting switches."""

    def __init__(self) -> None:
        self._kinds = (BatchNorms(), CrossEntropies(), Dropouts(), DepthwiseConvolutions())

    def describe(self) -> str:
        used = [kind.name for kind in self._kinds if kind.num_computed]
        missing = [kind for kind in self._kinds if kind.problem]
        parts = [f"{' and '.join(used)} by kernels in C"] if used else []
        if missing:
            names = " and ".join(kind.name for kind in missing)
            parts.append(f"{names} as torch computes it ({missing[0].problem})")
        return ", ".join(parts)

    def undo(self) -> None:
        for kind in self._kinds:
            kind.undo()
