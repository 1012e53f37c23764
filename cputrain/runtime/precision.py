"""bf16 where the user allowed it: inside oneDNN's kernels, or by autocast around whole models."""

from __future__ import annotations

from cputrain.runtime.outermost import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "precision"


class Kernels:
    """float32 in and out, bf16 inside matmuls and convolutions."""

    def __init__(self, torch: ModuleType) -> None:
        self._parts: list[tuple[Any, str]] = []
        for name in ("matmul", "conv"):
            part: Any = getattr(torch.backends.mkldnn, name, None)  # torch 2.9 and later
            if hasattr(part, "fp32_precision"):
                self._parts.append((part, part.fp32_precision))
                part.fp32_precision = "bf16"

    def describe(self) -> str:
        return "bf16 inside matmuls and convolutions" if self._parts else ""

    def undo(self) -> None:
        for part, before in self._parts:
            part.fp32_precision = before


class Autocast:
    """bf16 within each model's call. What it returns is float32, as the script expects.

    Weights are cast once for each call, and again for the next: an optimizer may have been between.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._calls = 0
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, model: Any, call: Callable[[], Any]) -> Any:
        torch = self._torch
        if torch.is_autocast_enabled("cpu") or not self._is_fit(model):
            return call()
        self._calls += 1
        with torch.autocast("cpu", torch.bfloat16):
            made = call()
        return torch.utils._pytree.tree_map_only(torch.Tensor, self._widened, made)

    def _is_fit(self, model: Any) -> bool:
        first = next(model.parameters(), None)
        return first is not None and first.is_cpu and first.dtype is self._torch.float32

    def _widened(self, tensor: Any) -> Any:
        return tensor.float() if tensor.dtype is self._torch.bfloat16 else tensor

    def describe(self) -> str:
        return "bf16 autocast around models" if self._calls else ""

    def undo(self) -> None:
        self._outermost.remove(self._around)


def apply(torch: ModuleType, value: object) -> Kernels | Autocast | None:
    """Start computing with fewer bits."""
    return Kernels(torch) if value == "kernels" else Autocast(torch) if value == "bf16" else None
