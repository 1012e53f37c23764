"""Convert convolution weights to channels_last, in the models that the script calls.

oneDNN then computes in that memory format and returns outputs in it, whatever the input's format.
Values, shapes and names of parameters stay; only their strides change.
"""

from __future__ import annotations

import weakref

from cputrain.counting import counted
from cputrain.runtime.memory_order import MemoryOrderPatches, to_contiguous
from cputrain.runtime.patching import Patch
from cputrain.runtime.root_forward import is_watched, root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class ChannelsLast:
    """The models that were called, and the weights that were converted.

    Args:
        torch: The module.
        is_on: Whether weights are converted from now on; `use` changes it.
    """

    def __init__(self, torch: ModuleType, *, is_on: bool = True) -> None:
        self._torch = torch
        self.is_on = is_on
        """Whether models that are called have their weights converted."""
        self._formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        self._conv_class = torch.nn.modules.conv._ConvNd
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that were called, and others that are never converted."""
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that were called and may be converted."""
        self._converted: dict[int, weakref.ref[Any]] = {}
        self._num_converted = 0
        self._is_active = True
        self._order_patches: MemoryOrderPatches | None = None
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._intercept)
        self._root_forward.on_compile(self._restore_all)
        self._patches = [
            Patch(torch.jit, name, self._with_restore(getattr(torch.jit, name)))
            for name in ("script", "trace", "trace_module")
        ]

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, self._torch.jit.ScriptModule):
            args, kwargs = to_contiguous(self._torch, (args, kwargs))
        elif model not in self._seen and not is_watched(self._torch):
            self._seen.add(model)
            self._called.add(model)
            if self.is_on:
                self._convert(model)
        return call(model, *args, **kwargs)

    def use(self, *, is_on: bool) -> None:
        """Convert the weights of the models that were called, or convert them back.

        The patches stay, as states of optimizers follow their weights in the next step.
        """
        self.is_on = is_on and self._is_active
        if self.is_on:
            for model in self._called:
                self._convert(model)
        else:
            for weight in self._converted_weights():
                self._restore(weight)

    def can_convert(self) -> bool:
        """Return whether a model that was called has weights that are, or can be, converted."""
        return self._is_active and any(
            self._is_converted(weight) or self._can_convert(weight)
            for model in self._called
            for weight in self._weights_of(model)
        )

    def convert_copy(self, model: Any) -> None:
        """Convert the weights of a copy of a model, which is not counted."""
        for weight in self._weights_of(model):
            if self._can_convert(weight):
                self._set_format(weight, self._formats[weight.dim()])

    def _weights_of(self, model: Any) -> list[Any]:
        """Return the weights of a model's convolutions, unless it cannot be converted."""
        torch = self._torch
        modules = list(model.modules())
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._seen.update(modules)  # DDP keeps views of their gradients
            return []
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
            return []  # within TorchScript, Tensor.view is torch's and would raise
        weights = [
            module._parameters.get("weight")
            for module in modules
            if isinstance(module, self._conv_class)
        ]
        return [weight for weight in weights if weight is not None]

    def _convert(self, model: Any) -> None:
        torch = self._torch
        for weight in self._weights_of(model):
            if self._can_convert(weight):
                self._set_format(weight, self._formats[weight.dim()])
                self._converted[id(weight)] = weakref.ref(weight)
                self._num_converted += 1
        if self._converted and self._order_patches is None:
            self._order_patches = MemoryOrderPatches(torch, self._restore_contiguous)

    def _set_format(self, weight: Any, memory_format: Any) -> None:
        # tensors created in inference mode can never be trained
        with self._torch.inference_mode(mode=False), self._torch.no_grad():
            weight.data = weight.data.contiguous(memory_format=memory_format)
            gradient = weight.grad
            if (
                gradient is not None  # torch warns where it accumulates in another format
                and gradient.layout is self._torch.strided
                and gradient.size() == weight.size()
            ):
                gradient.data = gradient.data.contiguous(memory_format=memory_format)

    def _can_convert(self, weight: Any) -> bool:
        """Return whether a weight is a plain contiguous CPU parameter that shares no memory."""
        return (
            type(weight) is self._torch.nn.Parameter
            and weight.is_cpu
            and weight.layout is self._torch.strided
            and weight.is_floating_point()
            and weight.dim() in self._formats
            and weight.is_contiguous()
            and not weight.is_contiguous(memory_format=self._formats[weight.dim()])
            and not weight.is_shared()
            and not weight.is_inference()
            and weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
        )

    def _restore_contiguous(self, tensor: Any) -> bool:
        """Make a converted weight, or its gradient, contiguous again; return whether it was one.

        Scripts write to these through views: writes to a copy would be lost.
        """
        is_tensor = type(tensor) in (self._torch.Tensor, self._torch.nn.Parameter)
        if not is_tensor or is_watched(self._torch) or tensor.is_inference():
            return False
        for weight in self._converted_weights():
            if weight.data_ptr() == tensor.data_ptr() and weight.size() == tensor.size():
                self._restore(weight)
                tensor.data = weight.data
                return True
            if weight.grad is tensor:
                tensor.data = tensor.data.contiguous()
                return True
        return False

    def _restore(self, weight: Any) -> None:
        self._set_format(weight, self._torch.contiguous_format)
        del self._converted[id(weight)]
        self._num_converted -= 1

    def _converted_weights(self) -> list[Any]:
        return [weight for ref in self._converted.values() if (weight := ref()) is not None]

    def _restore_all(self) -> None:
        """Convert all weights back before the script compiles: compilers miss the patched view."""
        self._deactivate()
        for weight in self._converted_weights():
            self._restore(weight)

    def _with_restore(self, original: Any) -> Any:
        """Wrap a torch.jit function to convert a model's weights back for TorchScript."""
        from functools import wraps

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, self._torch.nn.Module):
                    self._restore_model(argument)
            return original(*args, **kwargs)

        return wrapper

    def _restore_model(self, model: Any) -> None:
        self._seen.update(model.modules())
        self._called.difference_update(model.modules())
        for parameter in model.parameters():
            if self._is_converted(parameter):
                self._restore(parameter)

    def _is_converted(self, weight: Any) -> bool:
        ref = self._converted.get(id(weight))
        return ref is not None and ref() is weight

    def _deactivate(self) -> None:
        if self._is_active:
            self._is_active = False
            self._root_forward.remove(self._intercept)

    def describe(self) -> str:
        if not self._num_converted:
            return ""
        return f"{counted(self._num_converted, 'convolution')} channels last"

    def undo(self) -> None:
        """Stop converting; weights that were converted stay so, as their values are the same."""
        self._deactivate()
        for patch in self._patches:
            patch.undo()
        if self._order_patches is not None:
            self._order_patches.undo()
