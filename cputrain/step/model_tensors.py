"""The tensors of modules, and all other values of them that a forward depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as module_hooks

from cputrain.step.batches import layout_of
from cputrain.step.script_values import ScriptValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from cputrain.step.script_values import TensorPlace

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip

GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks",
)  # fmt: skip


class CompileError(Exception):
    """A step cannot be compiled; the message says why."""


class ModelTensors:
    """Tensors of a module as they are now, and what is assumed of its other values.

    Raises CompileError.

    Args:
        module: The module.
        functions: Functions beside the module whose plain values are assumed, too.
        has_attributes: Whether tensors that are other attributes belong to them.
        memory: What remembers where tensors are, by default on the CPU.
    """

    def __init__(
        self,
        module: nn.Module,
        functions: Iterable[Any] = (),
        *,
        has_attributes: bool = True,
        memory: Callable[[list[Tensor]], Any] | None = None,
    ) -> None:
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        """Parameters by name."""
        self.buffers: dict[str, Tensor] = dict(module.named_buffers())
        """Buffers by name."""
        modules = list(module.modules())
        self._places = [
            (place, name, tensor)
            for each in modules
            for place in (each._parameters, each._buffers)
            for name, tensor in place.items()
        ]
        self._submodules = [
            (each._modules, name, child)
            for each in modules
            for name, child in each._modules.items()
        ]
        self.values = ScriptValues(modules, functions)
        """Plain values of the script that the forward may read."""
        if self.values.is_large:
            raise CompileError("the forward may read a large array of NumPy, which may change")
        self._hooks = [
            *(getattr(each, name) for each in modules for name in HOOKS),
            *(getattr(module_hooks, name) for name in GLOBAL_HOOKS),
        ]
        self._flags = [
            (parameter, parameter.requires_grad) for parameter in self.parameters.values()
        ]
        if any(self._hooks) or any(_has_hooks(parameter) for parameter, _ in self._flags):
            raise CompileError("a module or a parameter has a hook")
        if any(buffer.requires_grad for buffer in self.buffers.values()):
            raise CompileError("a buffer needs a gradient")
        self.attributes: dict[str, Tensor] = {}
        """Tensors that are attributes, and neither parameters nor buffers, by unique names."""
        self._attribute_places: list[tuple[str, TensorPlace]] = []
        if has_attributes:
            self._add_attributes()
        self.tensors: list[Tensor] = [
            *self.parameters.values(), *self.buffers.values(), *self.attributes.values()
        ]  # fmt: skip
        """Parameters, buffers, and attributes."""
        self.unchanged: list[Tensor] = [*self.parameters.values(), *self.attributes.values()]
        """Those that a forward does not change."""
        self._memory = (memory or TensorMemory)(self.tensors)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled function assumes of these tensors and values."""
        named = [*self.parameters.items(), *self.buffers.items()]
        named += self.attributes.items()
        return (tuple((name, layout_of(tensor)) for name, tensor in named), self.values.key)

    def call(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the module with other tensors. Raises CompileError if attributes are changed.

        Args:
            module: The module.
            tensors: Parameters, buffers and attributes, by their names.
            args: Its arguments.
            kwargs: Its named arguments.
        """
        named = {name: each for name, each in tensors.items() if name not in self.attributes}
        versions = {name: tensors[name]._version for name in self.attributes}
        try:
            for key, (place, name, _) in self._attribute_places:
                place[name] = tensors[key]
            value = functional_call(module, named, args, kwargs)
        finally:
            for _, (place, name, tensor) in self._attribute_places:
                place[name] = tensor
        for name, version in versions.items():
            if tensors[name]._version != version:
                raise CompileError(f"{name}, which is no buffer, is changed in place")
        return value

    def _add_attributes(self) -> None:
        """Add the tensors that a forward may read, and that share no memory."""
        keys: dict[int, str] = {}
        known = {_storage_of(each) for each in (*self.parameters.values(), *self.buffers.values())}
        for each in self.values.tensors:
            tensor = each.tensor
            if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
                continue
            if id(tensor) not in keys and _storage_of(tensor) not in known:
                known.add(_storage_of(tensor))
                key = f"attribute {each.name}"
                keys[id(tensor)] = key if key not in self.attributes else f"{key} {len(keys)}"
                self.attributes[keys[id(tensor)]] = tensor
            if id(tensor) in keys:
                self._attribute_places.append((keys[id(tensor)], each))

    def move(self) -> None:
        """Remember where the tensors are now."""
        self._memory = TensorMemory(self.tensors)

    def is_current(self) -> bool:
        """Return whether all are as they were."""
        for place, name, tensor in self._places:
            if place.get(name) is not tensor:
                return False
        for _, (place, name, tensor) in self._attribute_places:
            if place.get(name) is not tensor:
                return False
        for parameter, requires_grad in self._flags:
            if parameter.requires_grad is not requires_grad or _has_hooks(parameter):
                return False
        if not self.values.are_current():
            return False
        for children, name, child in self._submodules:
            if children.get(name) is not child:
                return False
        return not any(self._hooks) and self._memory.is_current()


class TensorMemory:
    """Addresses and strides of tensors: a script may give a tensor other memory or another dtype.

    Args:
        tensors: The tensors. Raises CompileError where `check_memory` does.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        check_memory(tensors)
        self._tensors = tensors
        self._addresses = list(map(Tensor.data_ptr, tensors))
        self._strides = list(map(Tensor.stride, tensors))

    def is_current(self) -> bool:
        """Return whether each tensor is where it was."""
        return (
            list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and list(map(Tensor.stride, self._tensors)) == self._strides
        )


def check_memory(tensors: list[Tensor]) -> None:
    """Raise CompileError unless each tensor has memory of its own on the CPU."""
    if any(
        type(tensor) not in {Tensor, nn.Parameter}
        or tensor.layout is not torch.strided
        or not tensor.is_cpu
        for tensor in tensors
    ):
        raise CompileError("not all tensors are dense and on the CPU")
    if len(set(map(_storage_of, tensors))) < len(tensors):
        raise CompileError("tensors of the model or the optimizer share memory")


def _storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _has_hooks(parameter: Any) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
