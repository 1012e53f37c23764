"""A model once more, for one replica: modules of its own, the parameters' own memory.

Attributes that modules set while they run stay with the view. Each view has its own Parameters over
the same memory, so gradients come out apart, and an update of the model is an update of all views.
"""

from __future__ import annotations

from functools import partial
from types import MethodType

import torch
from torch import nn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PLAIN = (dict, list, tuple)
"""Containers that are looked into."""

TABLES = frozenset({"_parameters", "_buffers", "_modules"})
"""A module's own, in any case: names are put into them later."""


class View:
    """The model of one replica."""

    def __init__(
        self,
        model: nn.Module,
        changing: frozenset[str],
        *,
        first: bool = False,
        exactly: bool = False,
    ) -> None:
        made: dict[int, Any] = {}
        if exactly:  # in float64, with memory of its own
            for parameter in model.parameters():
                value = parameter.detach()
                value = value.double() if value.is_floating_point() else value
                made[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
        own: list[tuple[torch.Tensor, torch.Tensor]] = []
        if not first:  # the first keeps the model's own: what it writes to them stays
            for name, buffer in model.named_buffers(remove_duplicate=False):
                if name in changing and id(buffer) not in made:
                    clone = buffer.detach().clone()
                    exact = exactly and buffer.is_floating_point()
                    made[id(buffer)] = clone.double() if exact else clone
                    own.append((made[id(buffer)], buffer))
        self._own = own
        self.model: nn.Module = _viewed(model, made)
        self.parameters = [made[id(parameter)] for parameter in model.parameters()]

    def refresh(self) -> None:
        """Buffers that change in a forward begin as the model's."""
        for mine, models in self._own:
            mine.copy_(models)


def _viewed(value: Any, made: dict[int, Any]) -> Any:
    """What stands for it in the view: the thing itself, unless something within must differ."""
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, nn.Module):
        return _module(value, made)
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


def _module(module: nn.Module, made: dict[int, Any]) -> nn.Module:
    view = object.__new__(type(module))
    made[id(module)] = view
    held = view.__dict__
    for name, value in module.__dict__.items():
        held[name] = value
    for name, value in module.__dict__.items():
        held[name] = _table(value, made) if name in TABLES else _viewed(value, made)
    if isinstance(view, nn.RNNBase):
        view._init_flat_weights()  # it knows its weights by weak references, too
    return view


def _table(table: Mapping[str, Any], made: dict[int, Any]) -> Any:
    found = type(table)()
    for name, value in table.items():
        found[name] = _viewed(value, made)  # type: ignore[index]
    return found


def _container(value: Any, made: dict[int, Any]) -> Any:
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


def shape_of(model: nn.Module) -> tuple[Any, ...] | None:
    """What a view depends on: where it is another, views are made anew.

    None while there is something else in the place of a parameter, as within functional_call.
    """
    found: list[Any] = []
    for module in model.modules():
        held = module.__dict__
        found.append(id(module))
        if isinstance(module, torch.jit.ScriptModule):
            continue  # it is not viewed
        found.extend(map(id, held.values()))
        found.extend(map(id, held["_modules"].values()))
        found.extend(map(id, held["_buffers"].values()))
        for parameter in held["_parameters"].values():
            if parameter is not None:
                if type(parameter) is not nn.Parameter:
                    return None
                found += (id(parameter), parameter.data_ptr(), parameter.requires_grad)
    return tuple(found)
