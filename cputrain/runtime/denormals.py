"""Flushes denormals to zero, in this thread and all it will start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "flush_denormals"


class Flushed:
    """The setting of the main thread."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tiny = 5e-324

    def describe(self) -> str:
        is_on = self._tiny * 1.0 == 0  # Python's own arithmetic has the setting too
        return "denormals flushed to zero" if is_on else ""

    def undo(self) -> None:
        self._torch.set_flush_denormal(False)


def apply(torch: ModuleType, value: object) -> Flushed | None:
    """On where the CPU can."""
    if not value:
        return None
    _let_numpy_look_first()
    return Flushed(torch) if torch.set_flush_denormal(True) else None


def _let_numpy_look_first() -> None:
    """NumPy warns when it first measures a type and finds that denormals vanish; it looks once."""
    import sys
    import warnings

    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "finfo"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some emulated long doubles are worth a warning by itself
        for kind in (numpy.float16, numpy.float32, numpy.float64, numpy.longdouble):
            _ = numpy.finfo(kind).smallest_subnormal
