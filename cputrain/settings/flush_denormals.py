"""Setting `flush_denormals`: flush-to-zero, off by default because it is not exact.

Arithmetic on denormals can be 50 times slower (pytorch#21734), and weights that decay or moments of
vanishing gradients become denormal. Flushing them changes results, though: `-log(softmax(x))` at 92
becomes inf, Python's own `5e-324 > 0` becomes False, and NumPy warns. `cputrain diagnose`
reports where denormals cost time. The mode belongs to a thread; threads that it starts inherit it.
"""

from __future__ import annotations

from cputrain.settings.core.decision import Change
from cputrain.settings.core.setting import ARITHMETIC, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class FlushDenormalsSetting(Switch):
    """Whether denormals are flushed to zero."""

    name = "flush_denormals"
    order = 120
    group = ARITHMETIC
    is_advanced = True
    help = "treat numbers below 1.2e-38 as zero, which changes results (auto: off)"
    change = Change.FLUSHED
    says_on = "denormals flushed to zero"
    says_off = "denormals kept"
    reason = "results would change: the logarithm of a probability of 1e-40 becomes -inf"
    is_per_thread = True

    def inherited(self, value: bool) -> str:
        """Return the value: it does not depend on the share of the machine."""
        return "on" if value else "off"

    def apply(self, torch: ModuleType, value: bool) -> FlushedDenormals | None:
        """Flush denormals in this thread and all that it starts later, if the CPU can."""
        if not value:
            return None
        _initialize_numpy_finfo()
        return FlushedDenormals(torch) if torch.set_flush_denormal(True) else None


class FlushedDenormals:
    """The flush-to-zero mode of the main thread."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tiny = 5e-324

    def describe(self) -> str:
        is_on = self._tiny * 1.0 == 0  # Python's arithmetic is subject to the mode too
        return "denormals flushed to zero" if is_on else ""

    def undo(self) -> None:
        self._torch.set_flush_denormal(False)


def _initialize_numpy_finfo() -> None:
    """Have NumPy compute its `finfo` now: later it would find denormals flushed, and warn."""
    import sys
    import warnings

    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "finfo"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # emulated long doubles cause a warning of their own
        for dtype in (numpy.float16, numpy.float32, numpy.float64, numpy.longdouble):
            _ = numpy.finfo(dtype).smallest_subnormal


SETTING = FlushDenormalsSetting()
