"""Replicas of a model: separate modules and Parameters over the memory of the model's parameters.

Attributes that modules set in a forward stay in the replica. Each replica has its own Parameters,
so gradients are computed separately; they share the model's memory, so an optimizer's update
reaches all replicas. On another device, all replicas of that device share flat buffers
(flat_params).
"""

from __future__ import annotations

import warnings
from functools import partial
from types import MethodType
from typing import Any
from weakref import ref

import torch
from torch import nn

from cputrain.split.execution.flat_params import FlatParams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = (dict, list, tuple)
"""Containers whose elements are inspected."""

TABLES = frozenset({"_parameters", "_buffers", "_modules"})
"""Dicts that every module gets a copy of: names may be added to them later."""


class DeviceFlatParams:
    """A model's parameters and buffers on another device."""

    def __init__(self, model: nn.Module, changing: frozenset[str], device: torch.device) -> None:
        self.device = device
        self._changing = changing
        self.parameters = FlatParams(model.parameters(), device)
        # separate, as rewriting a flat buffer must not touch what an earlier graph has saved
        self._written, self._constant = (
            FlatParams(buffers, device) for buffers in _sorted_buffers(model, changing)
        )
        self.packed_buffers: dict[torch.dtype, torch.Tensor] = {}
        """Flat buffers for packing gradients, by dtype."""

    def are_of(self, model: nn.Module, changing: frozenset[str]) -> bool:
        """Return whether the model's tensors are the same, and it writes to no more buffers."""
        written, constant = _sorted_buffers(model, self._changing)
        return (
            changing <= self._changing
            and self.parameters.is_of(model.parameters())
            and self._written.is_of(written)
            and self._constant.is_of(constant)
        )

    def buffer(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the copy of a buffer."""
        key = id(buffer)
        return (
            self._written.values[key] if key in self._written.values else self._constant.values[key]
        )

    def update_buffers(self) -> None:
        """Send the buffers that have changed."""
        self._written.update()
        self._constant.update()


def _sorted_buffers(
    model: nn.Module, changing: frozenset[str]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the buffers that a forward writes to, and the others."""
    named = list(model.named_buffers(remove_duplicate=False))
    written = {id(buffer): buffer for name, buffer in named if name in changing}
    constant = {id(buffer): buffer for _, buffer in named if id(buffer) not in written}
    return list(written.values()), list(constant.values())


class _Replacements(dict[int, Any]):
    """Replacements for parts of the model, by the id of what they replace."""

    def __init__(self, home: torch.device, device: torch.device) -> None:
        super().__init__()
        self._home = home
        self._device = device
        self.copies: list[_TensorCopy] = []

    def must_copy(self, value: torch.Tensor) -> bool:
        """Return whether a tensor must be copied to the replica's device."""
        return self._home != self._device and value.device == self._home

    def make_copy(self, value: torch.Tensor) -> torch.Tensor:
        """Copy the tensor to the replica's device."""
        self.copies.append(_TensorCopy(value, self._device))
        return self.copies[-1].copied


class _TensorCopy:
    """Copy on another device of a module's tensor that is neither a parameter nor a buffer."""

    def __init__(self, value: torch.Tensor, device: torch.device) -> None:
        self._value = value
        self._version = version_of(value)
        self.copied = value.detach().to(device)

    def refresh(self) -> None:
        """Copy the tensor again if it was written to."""
        version = version_of(self._value)
        if version is None or version != self._version:
            self.copied.copy_(self._value)
            self._version = version


class Replica:
    """One replica of a model."""

    def __init__(
        self,
        model: nn.Module,
        changing: frozenset[str],
        *,
        is_first: bool = False,
        exactly: bool = False,
        device: torch.device | None = None,
        flat_params: DeviceFlatParams | None = None,
    ) -> None:
        """Replicate the model.

        Args:
            model: The model to replicate.
            changing: Names of buffers that a forward writes to; the replica gets copies of these.
            is_first: Share the model's buffers instead, so that writes to them stay.
            exactly: Copy parameters and buffers to float64.
            device: Copy parameters and buffers to this device.
            flat_params: Use these copies of the parameters and buffers on another device.
        """
        self.flat_params = flat_params
        home = home_of(model)
        replacements = _Replacements(
            home, flat_params.device if flat_params is not None else device or home
        )
        for parameter in model.parameters():
            value = None if flat_params is None else flat_params.parameters.values[id(parameter)]
            if exactly or device is not None:
                value = _converted(parameter.detach(), device, exactly=exactly)
            if value is not None:
                replacements[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
        written_buffers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if id(buffer) in replacements:
                continue
            source = buffer if flat_params is None else flat_params.buffer(buffer)
            if name in changing and not is_first:
                buffer_copy = _converted(source.detach().clone(), device, exactly=exactly)
                replacements[id(buffer)] = buffer_copy
                written_buffers.append((buffer_copy, source, buffer))
            elif flat_params is not None:
                replacements[id(buffer)] = source
        self._written_buffers = written_buffers
        self._is_on_cpu = bool(written_buffers) and all(
            tensor.is_cpu for buffers in written_buffers for tensor in buffers
        )
        self.model: nn.Module = _replicated(model, replacements)
        self._tensor_copies = replacements.copies
        self.parameters = [replacements[id(parameter)] for parameter in model.parameters()]
        self.numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        """Numbers of its parameters, by id."""

    def refresh(self) -> None:
        """Copy the model's buffers and other tensors to the replica, before a forward."""
        with torch.no_grad():
            if self._is_on_cpu:  # in one call: there may be hundreds
                copies, sources, _ = zip(*self._written_buffers, strict=True)
                torch._foreach_copy_(copies, sources)
            else:
                for buffer_copy, source, _ in self._written_buffers:
                    buffer_copy.copy_(source)
            for tensor_copy in self._tensor_copies:
                tensor_copy.refresh()

    def write_back(self) -> None:
        """Copy the buffers that the forward wrote to back to the model."""
        with torch.no_grad():
            for buffer_copy, _, model_buffer in self._written_buffers:
                model_buffer.copy_(buffer_copy)


def _converted(value: torch.Tensor, device: torch.device | None, *, exactly: bool) -> torch.Tensor:
    dtype = torch.float64 if exactly and value.is_floating_point() else value.dtype
    return value.to(device=device or value.device, dtype=dtype)


def _replicated(value: Any, replacements: _Replacements) -> Any:
    """Return the replica's version of a value: itself if nothing within it must differ."""
    if id(value) in replacements:
        return replacements[id(value)]
    if isinstance(value, nn.Module):
        return _replicated_module(value, replacements)
    if _is_plain_tensor(value) and replacements.must_copy(value):
        replacements[id(value)] = replacements.make_copy(value)
        return replacements[id(value)]
    if isinstance(value, nn.Parameter):
        alias = nn.Parameter(value.detach(), value.requires_grad)
        replacements[id(value)] = alias
        return alias
    if isinstance(value, PLAIN):
        return _replicated_container(value, replacements)
    if isinstance(value, MethodType):
        owner = _replicated(value.__self__, replacements)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, partial):
        parts_of_partial = (value.func, value.args, value.keywords)
        replicated = tuple(
            _replicated(value_inside, replacements) for value_inside in parts_of_partial
        )
        if all(before is after for before, after in zip(parts_of_partial, replicated, strict=True)):
            return value
        return partial(replicated[0], *replicated[1], **replicated[2])
    return value


def _replicated_module(module: nn.Module, replacements: _Replacements) -> nn.Module:
    replica = object.__new__(type(module))
    replacements[id(module)] = replica
    attributes = replica.__dict__
    for name, value in module.__dict__.items():
        attributes[name] = value
    for name, value in module.__dict__.items():
        attributes[name] = (
            _replicated_table(value, replacements)
            if name in TABLES
            else _replicated(value, replacements)
        )
    if isinstance(replica, nn.RNNBase):
        # an RNN also refers to its weights by weak references; the weights are not moved
        weights = [attributes["_parameters"].get(name) for name in replica._flat_weights_names]
        attributes["_flat_weights"] = weights
        attributes["_flat_weight_refs"] = [
            None if weight is None else ref(weight) for weight in weights
        ]
        attributes["flatten_parameters"] = _keep_weights
        # cuDNN then packs them in each call, which takes negligible time
        warnings.filterwarnings("ignore", message="RNN module weights are not part of")
    return replica


def _keep_weights() -> None:
    """Do nothing: RNNBase.flatten_parameters would move the weights to new memory."""


def _replicated_table(table: Mapping[str, Any], replacements: _Replacements) -> Any:
    result = type(table)()
    for name, value in table.items():
        result[name] = _replicated(value, replacements)  # type: ignore[index]
    return result


def _replicated_container(value: Any, replacements: _Replacements) -> Any:
    if isinstance(value, dict):
        replicated = {key: _replicated(element, replacements) for key, element in value.items()}
        if all(replicated[key] is element for key, element in value.items()):
            return value
        if type(value) is dict:
            return replicated
        copied = value.copy()
        copied.update(replicated)
        return copied
    replicated_list = [_replicated(element, replacements) for element in value]
    if all(before is after for before, after in zip(value, replicated_list, strict=True)):
        return value
    if hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*replicated_list)
    return type(value)(replicated_list)


def is_plain(parameter: torch.Tensor) -> bool:
    """Return whether it is a plain Parameter, or one of a device written in Python."""
    return type(parameter) is nn.Parameter or (
        isinstance(parameter, nn.Parameter) and _is_python_device(parameter)
    )


def _is_plain_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor or (
        isinstance(value, torch.Tensor)
        and not isinstance(value, nn.Parameter)
        and _is_python_device(value)
    )


def _is_python_device(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's class belongs to a device that is written in Python."""
    return tensor.device.type == torch._C._get_privateuse1_backend_name()


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the tensor's version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def home_of(model: nn.Module) -> torch.device:
    """Return the model's device: that of its first parameter."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _ids_inside(value: Any, kinds: Any, depth: int = 4) -> list[int]:
    """Return the ids of the values of these types in nested containers."""
    if not isinstance(value, PLAIN) or not depth:
        return [id(value)] if isinstance(value, kinds) else []
    elements = value.values() if isinstance(value, dict) else value
    return [inner for element in elements for inner in _ids_inside(element, kinds, depth - 1)]


def shape_of(model: nn.Module, *, tensors: bool = False) -> tuple[Any, ...] | None:
    """Return a signature of the model's structure: if it changes, replicas are made again.

    With `tensors`, it includes tensors in containers, which replicas on other devices have copies
    of.

    None while a parameter is replaced by something else, as within functional_call.
    """
    signature: list[Any] = []
    for module in model.modules():
        attributes = module.__dict__
        signature.append(id(module))
        if isinstance(module, torch.jit.ScriptModule):
            continue  # it is not replicated
        signature.extend(map(id, attributes.values()))
        for name, value in attributes.items():
            if isinstance(value, PLAIN) and value and name not in TABLES:
                signature += _ids_inside(value, (nn.Module, torch.Tensor) if tensors else nn.Module)
        signature.extend(map(id, attributes["_modules"].values()))
        signature.extend(map(id, attributes["_buffers"].values()))
        for parameter in attributes["_parameters"].values():
            if parameter is not None:
                if not is_plain(parameter):
                    return None
                signature += (id(parameter), parameter.data_ptr(), parameter.requires_grad)
    return tuple(signature)
