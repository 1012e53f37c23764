"""A second device, for tests: its memory is the host's, but torch does not know that.

Written in Python, by torch's own means for that. What a real device refuses it refuses as well: an
operation on tensors of two devices, and more memory than there is.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils import _pytree as tree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"

aten = torch.ops.aten
ACROSS = (aten.copy_.default, aten._to_copy.default)


class Limits:
    """What the device has."""

    elements: float = float("inf")
    """Of the largest tensor that an operation may make."""


threads: set[str] = set()
"""Who has asked something of it."""


class OnOther(torch.Tensor):
    """A tensor there."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnOther:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=f"{NAME}:0",
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"OnOther({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        threads.add(threading.current_thread().name)
        options = dict(kwargs or {})
        leaves = tree.tree_leaves((args, options))
        host = [one for one in leaves if isinstance(one, torch.Tensor) and type(one) is not cls]
        if func not in ACROSS and any(one.dim() for one in host):
            raise RuntimeError(f"all tensors must be on the same device; {func} has some on both")
        goes_to = options.pop("device", None)
        if goes_to is not None:
            options["device"] = "cpu"
        known = {id(one.held): one for one in leaves if isinstance(one, cls)}
        bare, named = tree.tree_map(_held, (args, options))
        found = func(*bare, **named)
        if func is aten.copy_.default:
            return args[0]
        if goes_to is not None and torch.device(goes_to).type == "cpu":
            return found
        return tree.tree_map(lambda one: _wrapped(one, known), found)


def _held(one: Any) -> Any:
    return one.held if isinstance(one, OnOther) else one


def _wrapped(one: Any, known: dict[int, OnOther]) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    if one.numel() > Limits.elements:
        raise torch.OutOfMemoryError(f"{NAME} has no memory for {one.numel()} elements")
    return known[id(one)] if id(one) in known else OnOther(one)


def _empty(size: Any, dtype: Any = None, *_: Any, **__: Any) -> OnOther:
    return OnOther(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, *_: Any, **__: Any) -> OnOther:
    return OnOther(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Any, target: Any, _non_blocking: bool = False) -> Any:
    _held(target).copy_(_held(source))
    return target


def moved(model: torch.nn.Module) -> torch.nn.Module:
    """The model there."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(NAME)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


_library: list[torch.library.Library] = []


def begin() -> None:
    """From now on it is there."""
    if _library:
        return
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    _library.append(library)
