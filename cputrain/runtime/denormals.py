"""Flush denormals to zero, in this thread and in all threads it starts later."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "flush_denormals"


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


def apply(torch: ModuleType, value: object) -> FlushedDenormals | None:
    """Enable flush-to-zero, if the CPU supports it."""
    if not value:
        return None
    _initialize_numpy_finfo()
    return FlushedDenormals(torch) if torch.set_flush_denormal(True) else None


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
