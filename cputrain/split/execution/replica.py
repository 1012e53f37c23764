"""A model once more, for one replica: modules of its own, the parameters' own memory.

Attributes that modules set while they run stay with the view. Each view has its own Parameters over
the same memory, so gradients come out apart, and an update of the model is an update of all views.
On another device that memory is a mirror's, which all replicas there have in common.
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
"""Containers that are looked into."""

TABLES = frozenset({"_parameters", "_buffers", "_modules"})
"""A module's own, in any case: names are put into them later."""


class DeviceFlatParams:
    """A model's parameters and buffers on another device."""

    def __init__(self, model: nn.Module, changing: frozenset[str], device: torch.device) -> None:
        self.device = device
        self._changing = changing
        self.parameters = FlatParams(model.parameters(), device)
        # apart, as what is written again is not what the graph of an earlier call has kept
        self._moving, self._still = (FlatParams(one, device) for one in _sorted(model, changing))
        self.packed: dict[torch.dtype, torch.Tensor] = {}
        """Memory for the gradients that come back."""

    def are_of(self, model: nn.Module, changing: frozenset[str]) -> bool:
        """Whether it has the same still, and no more of its buffers change."""
        moving, still = _sorted(model, self._changing)
        return (
            changing <= self._changing
            and self.parameters.is_of(model.parameters())
            and self._moving.is_of(moving)
            and self._still.is_of(still)
        )

    def buffer(self, buffer: torch.Tensor) -> torch.Tensor:
        """What stands for it."""
        key = id(buffer)
        return self._moving.values[key] if key in self._moving.values else self._still.values[key]

    def update_buffers(self) -> None:
        """Send those that are not as they were."""
        self._moving.update()
        self._still.update()


def _sorted(
    model: nn.Module, changing: frozenset[str]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Buffers that a forward writes to, and the others."""
    named = list(model.named_buffers(remove_duplicate=False))
    moving = {id(buffer): buffer for name, buffer in named if name in changing}
    still = {id(buffer): buffer for _, buffer in named if id(buffer) not in moving}
    return list(moving.values()), list(still.values())


class _Made(dict[int, Any]):
    """What stands for what, by its id."""

    def __init__(self, home: torch.device, device: torch.device) -> None:
        super().__init__()
        self._home = home
        self._device = device
        self.loose: list[_Loose] = []

    def moves(self, value: torch.Tensor) -> bool:
        """Whether this one, no parameter and no buffer, is needed elsewhere than it is."""
        return self._home != self._device and value.device == self._home

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        """The same where it is needed."""
        self.loose.append(_Loose(value, self._device))
        return self.loose[-1].copied


class _Loose:
    """A tensor that a module has, and that is neither a parameter nor a buffer, elsewhere."""

    def __init__(self, value: torch.Tensor, device: torch.device) -> None:
        self._value = value
        self._version = version_of(value)
        self.copied = value.detach().to(device)

    def refresh(self) -> None:
        """As it is now, if it was written to."""
        now = version_of(self._value)
        if now is None or now != self._version:
            self.copied.copy_(self._value)
            self._version = now


class Replica:
    """The model of one replica."""

    def __init__(
        self,
        model: nn.Module,
        changing: frozenset[str],
        *,
        first: bool = False,
        exactly: bool = False,
        device: torch.device | None = None,
        mirrors: DeviceFlatParams | None = None,
    ) -> None:
        """The `first` has the model's own buffers: what it writes to them stays.

        `exactly`, it is in float64, with memory of its own; it is on a `device` other than the
        model's either so, or by `mirrors` of it.
        """
        self.mirrors = mirrors
        home = home_of(model)
        made = _Made(home, mirrors.device if mirrors is not None else device or home)
        for parameter in model.parameters():
            value = None if mirrors is None else mirrors.parameters.values[id(parameter)]
            if exactly or device is not None:
                value = _moved(parameter.detach(), device, exactly=exactly)
            if value is not None:
                made[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
        own: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if id(buffer) in made:
                continue
            source = buffer if mirrors is None else mirrors.buffer(buffer)
            if name in changing and not first:
                mine = _moved(source.detach().clone(), device, exactly=exactly)
                made[id(buffer)] = mine
                own.append((mine, source, buffer))
            elif mirrors is not None:
                made[id(buffer)] = source
        self._own = own
        self.model: nn.Module = _viewed(model, made)
        self._loose = made.loose
        self.parameters = [made[id(parameter)] for parameter in model.parameters()]

    def refresh(self) -> None:
        """Buffers that change in a forward begin as the model's; other tensors are as they are."""
        with torch.no_grad():
            for mine, source, _ in self._own:
                mine.copy_(source)
            for one in self._loose:
                one.refresh()

    def write_back(self) -> None:
        """The model's buffers become what a forward has made of these."""
        with torch.no_grad():
            for mine, _, models in self._own:
                models.copy_(mine)


def _moved(value: torch.Tensor, device: torch.device | None, *, exactly: bool) -> torch.Tensor:
    kind = torch.float64 if exactly and value.is_floating_point() else value.dtype
    return value.to(device=device or value.device, dtype=kind)


def _viewed(value: Any, made: _Made) -> Any:
    """What stands for it in the view: the thing itself, unless something within must differ."""
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, nn.Module):
        return _module(value, made)
    if _is_plain_tensor(value) and made.moves(value):
        made[id(value)] = made.moved(value)
        return made[id(value)]
    if isinstance(value, nn.Parameter):
        alias = nn.Parameter(value.detach(), value.requires_grad)
        made[id(value)] = alias
        return alias
    if isinstance(value, PLAIN):
        return _container(value, made)
    if isinstance(value, MethodType):
        owner = _viewed(value.__self__, made)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, partial):
        held = (value.func, value.args, value.keywords)
        inside = tuple(_viewed(one, made) for one in held)
        if all(a is b for a, b in zip(held, inside, strict=True)):
            return value
        return partial(inside[0], *inside[1], **inside[2])
    return value


def _module(module: nn.Module, made: _Made) -> nn.Module:
    view = object.__new__(type(module))
    made[id(module)] = view
    held = view.__dict__
    for name, value in module.__dict__.items():
        held[name] = value
    for name, value in module.__dict__.items():
        held[name] = _table(value, made) if name in TABLES else _viewed(value, made)
    if isinstance(view, nn.RNNBase):
        # it knows its weights by weak references, too; they stay where they are
        weights = [held["_parameters"].get(name) for name in view._flat_weights_names]
        held["_flat_weights"] = weights
        held["_flat_weight_refs"] = [None if one is None else ref(one) for one in weights]
        held["flatten_parameters"] = _stays
        # on a GPU they are put side by side in each call then, which takes nothing to speak of
        warnings.filterwarnings("ignore", message="RNN module weights are not part of")
    return view


def _stays() -> None:
    """In the place of what moves weights to memory of their own."""


def _table(table: Mapping[str, Any], made: _Made) -> Any:
    found = type(table)()
    for name, value in table.items():
        found[name] = _viewed(value, made)  # type: ignore[index]
    return found


def _container(value: Any, made: _Made) -> Any:
    if isinstance(value, dict):
        inside = {key: _viewed(one, made) for key, one in value.items()}
        if all(inside[key] is one for key, one in value.items()):
            return value
        if type(value) is dict:
            return inside
        copied = value.copy()
        copied.update(inside)
        return copied
    inside_list = [_viewed(one, made) for one in value]
    if all(a is b for a, b in zip(value, inside_list, strict=True)):
        return value
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*inside_list)
    return type(value)(inside_list)


def is_plain(parameter: torch.Tensor) -> bool:
    """Whether it is a parameter like any other."""
    return type(parameter) is nn.Parameter or (
        isinstance(parameter, nn.Parameter) and _is_of_its_device(parameter)
    )


def _is_plain_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor or (
        isinstance(value, torch.Tensor)
        and not isinstance(value, nn.Parameter)
        and _is_of_its_device(value)
    )


def _is_of_its_device(tensor: torch.Tensor) -> bool:
    """Whether it is of a class because its device, written in Python, has one."""
    return tensor.device.type == torch._C._get_privateuse1_backend_name()


def version_of(tensor: torch.Tensor) -> int | None:
    """Another one whenever it was written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def home_of(model: nn.Module) -> torch.device:
    """Where it is: the device of its first parameter."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _held(value: Any, kinds: Any, depth: int = 4) -> list[int]:
    """The ids of what is in containers, of these kinds."""
    if not isinstance(value, PLAIN) or not depth:
        return [id(value)] if isinstance(value, kinds) else []
    inside = value.values() if isinstance(value, dict) else value
    return [found for one in inside for found in _held(one, kinds, depth - 1)]


def shape_of(model: nn.Module, *, tensors: bool = False) -> tuple[Any, ...] | None:
    """What a view depends on: where it is another, views are made anew.

    With `tensors`, it is on another device, and has others in the place of the model's.

    None while there is something else in the place of a parameter, as within functional_call.
    """
    found: list[Any] = []
    for module in model.modules():
        held = module.__dict__
        found.append(id(module))
        if isinstance(module, torch.jit.ScriptModule):
            continue  # it is not viewed
        found.extend(map(id, held.values()))
        for name, value in held.items():
            if isinstance(value, PLAIN) and value and name not in TABLES:
                found += _held(value, (nn.Module, torch.Tensor) if tensors else nn.Module)
        found.extend(map(id, held["_modules"].values()))
        found.extend(map(id, held["_buffers"].values()))
        for parameter in held["_parameters"].values():
            if parameter is not None:
                if not is_plain(parameter):
                    return None
                found += (id(parameter), parameter.data_ptr(), parameter.requires_grad)
    return tuple(found)
