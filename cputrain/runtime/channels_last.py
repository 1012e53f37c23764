"""Lays the weights of convolutions out channels last, in the models that the script calls.

oneDNN then computes in that order and hands its results on in it, whatever the order of the input.
Values, shapes and names stay; what changes is where a number lies.
"""

from __future__ import annotations

import weakref

from cputrain.runtime.memory_order import Unnoticed, as_counted
from cputrain.runtime.patching import Patch
from cputrain.runtime.root_forward import is_watched, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "channels_last"


class ChannelsLast:
    """The models that were seen, and the weights that were laid out anew."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._orders = {4: torch.channels_last, 5: torch.channels_last_3d}
        self._convolutions = torch.nn.modules.conv._ConvNd
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._turned: dict[int, weakref.ref[Any]] = {}
        self._count = 0
        self._at_work = True
        self._unnoticed: Unnoticed | None = None
        self._outermost = outermost(torch)
        self._outermost.add(self._around)
        self._outermost.tell(self._stop)
        self._exchanged = [
            Patch(torch.jit, name, self._laying_back(getattr(torch.jit, name)))
            for name in ("script", "trace", "trace_module")
        ]

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        if isinstance(model, self._torch.jit.ScriptModule):
            args, options = as_counted(self._torch, (args, options))
        elif model not in self._seen and not is_watched(self._torch):
            self._seen.add(model)
            self._turn(model)
        return call(model, *args, **options)

    def _turn(self, model: Any) -> None:
        torch = self._torch
        modules = list(model.modules())
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._seen.update(modules)  # it keeps views of their gradients
            return
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
            return  # in there, views are torch's
        for module in modules:
            if isinstance(module, self._convolutions):
                weight = module._parameters.get("weight")
                if weight is not None and self._may_turn(weight):
                    self._lay(weight, self._orders[weight.dim()])
                    self._turned[id(weight)] = weakref.ref(weight)
                    self._count += 1
        if self._turned and self._unnoticed is None:
            self._unnoticed = Unnoticed(torch, self._straighten)

    def _lay(self, weight: Any, order: Any) -> None:
        # what is made in inference mode can never be trained
        with self._torch.inference_mode(mode=False), self._torch.no_grad():
            weight.data = weight.data.contiguous(memory_format=order)

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
            and not weight.is_inference()
            and weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
        )

    def _straighten(self, tensor: Any) -> bool:
        """Lay it back, where it is a weight that was laid out, or its gradient.

        Scripts write to those through views, and a copy in the place of a view would be written to
        in vain.
        """
        plain = type(tensor) in (self._torch.Tensor, self._torch.nn.Parameter)
        if not plain or is_watched(self._torch) or tensor.is_inference():
            return False
        for weight in self._weights():
            if weight.data_ptr() == tensor.data_ptr() and weight.size() == tensor.size():
                self._lay_back(weight)
                tensor.data = weight.data
                return True
            if weight.grad is tensor:
                tensor.data = tensor.data.contiguous()
                return True
        return False

    def _lay_back(self, weight: Any) -> None:
        self._lay(weight, self._torch.contiguous_format)
        del self._turned[id(weight)]
        self._count -= 1

    def _weights(self) -> list[Any]:
        return [weight for found in self._turned.values() if (weight := found()) is not None]

    def _stop(self) -> None:
        """The script compiles something, and no compiler knows of a view that forgives."""
        self._leave()
        for weight in self._weights():
            self._lay_back(weight)

    def _laying_back(self, own: Any) -> Any:
        """A function that makes torch's own of a model, where views are torch's, too."""
        from functools import wraps

        @wraps(own)
        def made(*args: Any, **options: Any) -> Any:
            for one in (*args, *options.values()):
                if isinstance(one, self._torch.nn.Module):
                    self._leave_to_script(one)
            return own(*args, **options)

        return made

    def _leave_to_script(self, model: Any) -> None:
        self._seen.update(model.modules())
        for parameter in model.parameters():
            if self._is_turned(parameter):
                self._lay_back(parameter)

    def _is_turned(self, weight: Any) -> bool:
        found = self._turned.get(id(weight))
        return found is not None and found() is weight

    def _leave(self) -> None:
        if self._at_work:
            self._at_work = False
            self._outermost.remove(self._around)

    def describe(self) -> str:
        if not self._count:
            return ""
        return f"{self._count} convolution{'s' * (self._count != 1)} channels last"

    def undo(self) -> None:
        """Models that were turned stay so: their values are the same."""
        self._leave()
        for one in self._exchanged:
            one.undo()
        if self._unnoticed is not None:
            self._unnoticed.undo()


def apply(torch: ModuleType, value: object) -> ChannelsLast | None:
    """Wait for models to be called."""
    return ChannelsLast(torch) if value else None
