"""Lays the weights of convolutions out channels last, in the models that the script calls.

oneDNN then computes in that order and hands its results on in it, whatever the order of the input.
Values, shapes and names stay; what changes is where a number lies.
"""

from __future__ import annotations

import weakref

from cputrain.runtime.outermost import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "channels_last"


class ChannelsLast:
    """The models that were seen, and how many weights were laid out anew."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._orders = {4: torch.channels_last, 5: torch.channels_last_3d}
        self._convolutions = torch.nn.modules.conv._ConvNd
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._turned = 0
        self._outermost = outermost(torch)
        self._outermost.add(self._around)
        self._view = _ForgivingView(torch)

    def _around(self, model: Any, call: Callable[[], Any]) -> Any:
        if model not in self._seen:
            self._seen.add(model)
            self._turn(model)
        return call()

    def _turn(self, model: Any) -> None:
        torch = self._torch
        if isinstance(model, (torch.jit.ScriptModule, torch.nn.parallel.DistributedDataParallel)):
            return  # the one keeps weights of its own, the other views of their gradients
        for module in model.modules():
            if isinstance(module, self._convolutions):
                weight = module._parameters.get("weight")
                if weight is not None and self._may_turn(weight):
                    order = self._orders[weight.dim()]
                    with torch.no_grad():
                        weight.data = weight.data.contiguous(memory_format=order)
                    self._turned += 1

    def _may_turn(self, weight: Any) -> bool:
        """It is a plain one on the CPU, and nobody else looks at its memory."""
        return (
            type(weight) is self._torch.nn.Parameter
            and weight.is_cpu
            and weight.layout is self._torch.strided
            and weight.is_floating_point()
            and weight.dim() in self._orders
            and weight.is_contiguous()
            and not weight.is_contiguous(memory_format=self._orders[weight.dim()])
            and not weight.is_shared()
            and weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
        )

    def describe(self) -> str:
        if not self._turned:
            return ""
        return f"{self._turned} convolution{'s' * (self._turned != 1)} channels last"

    def undo(self) -> None:
        """Models that were turned stay so: their values are the same."""
        self._outermost.remove(self._around)
        self._view.undo()


class _ForgivingView:
    """`x.view(len(x), -1)` behind a convolution, as scripts write it.

    Channels last, that is no view of the same memory, and torch would raise. It becomes a copy, as
    `reshape` makes it.
    """

    def __init__(self, torch: ModuleType) -> None:
        kind: Any = torch.Tensor
        own = kind.view

        def view(self: Any, *shape: Any, **options: Any) -> Any:
            try:
                return own(self, *shape, **options)
            except RuntimeError:
                if self.is_contiguous():  # then it is about something else
                    raise
                return own(self.contiguous(), *shape, **options)

        self._kind, self._ours = kind, view
        kind.view = view

    def undo(self) -> None:
        if self._kind.__dict__.get("view") is self._ours:
            del self._kind.view  # what is behind is the base's own


def apply(torch: ModuleType, value: object) -> ChannelsLast | None:
    """Wait for models to be called."""
    return ChannelsLast(torch) if value else None
