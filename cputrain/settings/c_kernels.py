"""Setting `c_kernels`: regions of a step by kernels in C, compiled for this machine.

Torch's take several passes over memory: on two threads, a large batch norm with a ReLU behind it
took half as long, forward and backward, and a cross entropy over many classes a third. Torch draws
the numbers of dropout on one core, and has no vectors for the gradient of large depthwise filters:
there the kernels take a fifth of the time.
"""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, OnByDefault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.settings.core.setting import Applied


class CKernelsSetting(OnByDefault):
    """Whether batch norm, cross entropy, dropout and more are computed by kernels in C."""

    name = "c_kernels"
    excluded_by = frozenset({"isa"})  # a compiler takes the newest instructions
    order = 135
    group = ARITHMETIC
    is_advanced = True
    help = "batch norm, cross entropy, dropout and more by kernels in C, compiled once (auto: on)"
    says_on = "batch norm, cross entropy, dropout and more by kernels in C"
    says_off = "batch norm, cross entropy, dropout and more as torch computes them"
    reason = "fewer passes over memory and more threads than torch's operators, given a C compiler"
    reason_not_off = "with them, a large batch norm and its ReLU took half as long"

    def modules(self, value: bool) -> tuple[str, ...]:
        """Return transformers' activations, one of which is composed of eight operators."""
        return ("transformers.activations",) if value else ()

    def after_import(self, module: ModuleType, value: bool) -> None:
        """Compute it in chunks, and remember calls of large linear layers."""
        from cputrain.runtime.c_kernels import CKernels
        from cputrain.runtime.state import NOW

        kernels = NOW.applied.get(self.name)
        if isinstance(kernels, CKernels):
            kernels.patch(module)

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Patch torch; the kernels are compiled when they are first needed."""
        if not value:
            return None
        from cputrain.runtime.c_kernels import CKernels

        return CKernels()


SETTING = CKernelsSetting()
