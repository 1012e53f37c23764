"""bf16 where the user allowed it: inside oneDNN's kernels, or by autocast around whole models."""

from __future__ import annotations

from collections.abc import MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from operator import setitem
from types import SimpleNamespace

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

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        torch = self._torch
        if torch.is_autocast_enabled("cpu") or not self._is_fit(model):
            return call(model, *args, **options)
        self._calls += 1
        with torch.autocast("cpu", torch.bfloat16):
            made = call(model, *args, **options)
        return self._widened(made)

    def _is_fit(self, model: Any) -> bool:
        first = next(model.parameters(), None)
        return first is not None and first.is_cpu and first.dtype is self._torch.float32

    def _widened(self, made: Any) -> Any:
        """float32 in the place of bf16; the very same object where there is none to replace."""
        tree = self._torch.utils._pytree
        leaves, shape = tree.tree_flatten(made)
        wider = [self._widened_leaf(leaf) for leaf in leaves]
        if all(new is old for new, old in zip(wider, leaves, strict=True)):
            return made
        return tree.tree_unflatten(wider, shape)

    def _widened_leaf(self, leaf: Any) -> Any:
        torch = self._torch
        if isinstance(leaf, torch.Tensor):
            return leaf.float() if leaf.dtype is torch.bfloat16 else leaf
        parts, put = _parts(leaf)
        wider = {
            name: new for name, part in parts.items() if (new := self._widened(part)) is not part
        }
        if not wider:
            return leaf
        changed = copy(leaf)
        for name, new in wider.items():
            put(changed, name, new)
        return changed

    def describe(self) -> str:
        return "bf16 autocast around models" if self._calls else ""

    def undo(self) -> None:
        self._outermost.remove(self._around)


def _parts(made: Any) -> tuple[dict[Any, Any], Callable[[Any, Any, Any], None]]:
    """What an output is made of that torch takes for one thing, and how to replace a part."""
    if isinstance(made, MutableMapping):
        return dict(made), setitem
    if is_dataclass(made) and not isinstance(made, type):
        # a frozen one, too
        return {one.name: getattr(made, one.name) for one in fields(made)}, object.__setattr__
    if isinstance(made, SimpleNamespace):
        return vars(made), setattr
    return {}, setitem


def apply(torch: ModuleType, value: object) -> Kernels | Autocast | None:
    """Start computing with fewer bits."""
    return Kernels(torch) if value == "kernels" else Autocast(torch) if value == "bf16" else None
