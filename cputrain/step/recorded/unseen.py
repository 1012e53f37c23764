"""Functions of torch that read tensors without asking their class: what is deferred is computed."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms, vmap

from cputrain.runtime.patching import Patch, skip_frames, uncounted, without_ours
from cputrain.runtime.replaced_builtin import replace
from cputrain.step.recorded.deferred import DeferredTensor, real_of

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = (
    "tensor", "as_tensor", "asarray", "scalar_tensor", "full", "arange", "sparse_coo_tensor",
    "sparse_compressed_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor",
    "sparse_bsc_tensor",
)  # fmt: skip
"""Functions of torch."""

METHODS = ("new_tensor", "new_full", "set_")
"""Methods of its tensors."""

FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "backward"), (vmap, "_add_batch_dim"), (eager_transforms, "_wrap_for_grad"),
)  # fmt: skip
"""Functions of other modules."""

AUTOGRAD_FUNCTION: Any = torch.autograd.Function
PARAMETER: Any = nn.Parameter

BUFFERS = ("state_dict", "named_buffers")
"""Methods of modules that read buffers, which deferred calls may be about to change."""

NEVER_RECORDED = frozenset({
    *(getattr(torch, name) for name in NAMES), *(getattr(Tensor, name) for name in METHODS),
})  # fmt: skip
"""These functions and methods, which are called with computed tensors and are not recorded."""


class UnseenFunctions:
    """The patches of these functions.

    Args:
        is_pending: Tells whether a region has calls that are not made yet.
        settle: Makes them.
    """

    def __init__(self, is_pending: Callable[[], bool], settle: Callable[[], None]) -> None:
        self._is_pending, self._settle = is_pending, settle
        self.redo()

    def redo(self) -> None:
        """Patch them, also again after `undo`."""
        self._patches = [
            *self._replaced(torch, NAMES),
            *self._replaced(Tensor, METHODS),
            *self._replaced(torch._C, ("_to_dlpack",)),
            *self._replaced(torch.utils.dlpack, ("to_dlpack",)),
            *(
                Patch(place, name, self._decorated(getattr(place, name)))
                for place, name in FUNCTIONS
            ),
            *(Patch(nn.Module, name, self._settled(getattr(nn.Module, name))) for name in BUFFERS),
        ]
        function, parameter = AUTOGRAD_FUNCTION, PARAMETER
        self._apply, self._new = vars(function)["apply"], parameter.__new__
        function.apply = classmethod(self._decorated(self._apply.__func__))
        parameter.__new__ = self._decorated(self._new)

    def undo(self) -> None:
        """Have torch's functions again."""
        for patch in self._patches:
            patch.undo()
        AUTOGRAD_FUNCTION.apply, PARAMETER.__new__ = self._apply, self._new

    def _replaced(self, place: Any, names: tuple[str, ...]) -> list[Patch]:
        return [
            patch
            for name in names
            for patch in replace([place], name, partial(self._compute, getattr(place, name)))
        ]

    def _compute(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function returns for computed tensors; None if there are no others."""
        if self._is_pending() and (has_deferred(args) or has_deferred(kwargs)):
            return function(*computed(args), **computed(kwargs))
        return None

    def _settled(self, method: Callable[..., Any]) -> Any:
        @wraps(method)
        def settle_and_call(*args: Any, **kwargs: Any) -> Any:
            if self._is_pending():
                self._settle()
            return method(*args, **kwargs)

        return settle_and_call

    def _decorated(self, function: Callable[..., Any]) -> Any:
        @wraps(function)
        def call_computed(*args: Any, **kwargs: Any) -> Any:
            if has_deferred(args) or has_deferred(kwargs):
                args, kwargs = computed(args), computed(kwargs)
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        skip_frames(uncounted(call_computed).__code__)
        return call_computed


def computed(value: Any) -> Any:
    """Return arguments with the tensors that the script would have."""
    kind = type(value)
    if kind is DeferredTensor:
        return real_of(value)
    if isinstance(value, tuple | list):
        if not any(map(has_deferred, value)):
            return value
        members = map(computed, value)
        return kind(*members) if hasattr(kind, "_fields") else kind(members)
    if kind is dict:
        return {name: computed(member) for name, member in value.items()}
    return value


def has_deferred(value: Any) -> bool:
    """Return whether a value is, or has in it, a tensor of a recorded region."""
    if isinstance(value, dict):
        return any(map(has_deferred, value.values()))
    if isinstance(value, tuple | list):
        return any(map(has_deferred, value))
    return type(value) is DeferredTensor
