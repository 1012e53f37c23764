"""A call of a module whose saved tensors can be dropped, and made again by calling it again."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from cputrain.errors import RecomputationError
from cputrain.memory.saved_tensors import SavedTensor, storage_of
from cputrain.runtime.root_forward import within_call
from cputrain.runtime.saved_tensor_hooks import mark_internal

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from cputrain.memory.saved_tensors import SavedBytes


MAX_COPIED_BYTES = 1 << 20
"""Largest buffer that is copied before each call that may be recomputed."""


CONTAINERS = frozenset({list, dict, set, deque})
"""Types of attributes whose contents are restored, too."""


class _EnoughError(BaseException):
    """Ends a recomputation once the last tensor that is needed exists; no script is to catch it."""


class ModuleState:
    """What a module and those within it were when it was called.

    Buffers of up to a MiB are copied: calls may change them, as those of batch norm.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._attributes: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._requires_grad: list[tuple[torch.Tensor, bool]] = []
        for each in module.modules():
            attributes = {
                name: copy(value) if type(value) in CONTAINERS else value
                for name, value in vars(each).items()
            }
            buffers = dict(each._buffers)
            for name, buffer in buffers.items():
                if buffer is None:
                    continue
                if _is_copied(buffer):
                    buffers[name] = buffer.detach().clone()
                else:
                    self._versions.append((buffer, buffer._version))
            attributes["_buffers"] = buffers
            attributes["_parameters"] = parameters = dict(each._parameters)
            attributes["_modules"] = dict(each._modules)
            for parameter in parameters.values():
                if parameter is not None:
                    self._versions.append((parameter, parameter._version))
                    self._requires_grad.append((parameter, parameter.requires_grad))
            self._attributes.append((each, attributes))

    def changed(self) -> torch.Tensor | None:
        """Return a parameter or buffer that was changed in place since; None if there is none."""
        return next((each for each, version in self._versions if each._version != version), None)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have the modules be what they were; what is set meanwhile is forgotten."""
        now = [(module, module.__dict__) for module, _ in self._attributes]
        flags = [(each, each.requires_grad) for each, _ in self._requires_grad]
        for module, attributes in self._attributes:
            buffers = {
                name: buffer.clone() if _is_copied(buffer) else buffer
                for name, buffer in attributes["_buffers"].items()
            }
            module.__dict__ = {
                name: copy(value) if type(value) in CONTAINERS else value
                for name, value in attributes.items()
            } | {"_buffers": buffers}
        _set_requires_grad(self._requires_grad)
        try:
            yield
        finally:
            for module, attributes in now:
                module.__dict__ = attributes
            _set_requires_grad(flags)


def _is_copied(buffer: torch.Tensor | None) -> bool:
    return (
        buffer is not None and buffer.layout is torch.strided and buffer.nbytes <= MAX_COPIED_BYTES
    )


def _set_requires_grad(flags: Sequence[tuple[torch.Tensor, bool]]) -> None:
    for tensor, is_required in flags:
        if tensor.requires_grad != is_required:
            tensor.requires_grad_(is_required)


def tensors_in(*arguments: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def batch_size(*arguments: Any) -> int:
    """Return the first size of the first tensor among arguments; 1 without one."""
    return next((tensor.size(0) for tensor in tensors_in(arguments) if tensor.dim()), 1)


class _Tensor(NamedTuple):
    """A tensor among the arguments."""

    key: int


class ModuleCall:
    """A call of a module: its arguments, and the states that its result depends on.

    Args:
        name: The module's name, for messages.
        function: Calls the module.
        state: The module's state.
        args: Positional arguments.
        kwargs: Keyword arguments.
        count: Counts what the arguments hold while the call is dropped.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        state: ModuleState,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        count: SavedBytes,
    ) -> None:
        self.name = name
        self._function, self._state, self._count = function, state, count
        leaves, self._structure = tree_flatten((args, kwargs))
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self._tensors = {
            key: (leaf.detach(), leaf.requires_grad, leaf._version) for key, leaf in tensors.items()
        }
        # one tensor that is several arguments is one tensor again: attention asks for that
        self._leaves = [_Tensor(id(leaf)) if id(leaf) in tensors else leaf for leaf in leaves]
        self._random_state = torch.get_rng_state()
        self._autocasts = torch.is_autocast_enabled("cpu")
        self._autocast_dtype = torch.get_autocast_dtype("cpu")
        self._caches_casts = torch.is_autocast_cache_enabled()
        self._saved: list[weakref.ref[SavedTensor]] = []
        self._held: list[int] = []

    def is_unchanged(self) -> bool:
        """Return whether arguments, parameters and large buffers are what they were at the call."""
        return self._changed() is None

    @cached_property
    def inputs(self) -> dict[int, int]:
        """Return the bytes of the tensors that it is called with, by the storage's address."""
        storages = (storage_of(tensor) for tensor, _, _ in self._tensors.values())
        return {
            storage.data_ptr(): self._count.new_size(storage)
            for storage in storages
            if storage is not None
        }

    def drop(self, saved: Sequence[weakref.ref[SavedTensor]]) -> None:
        """Drop the tensors that were saved in the call.

        Args:
            saved: What autograd holds in place of them, in order.
        """
        self._saved = list(saved)
        for tensor, _, _ in self._tensors.values():
            storage = storage_of(tensor)
            if storage is not None:
                self._held.append(self._count.add(storage))
        for reference in self._saved:
            holder = reference()
            if holder is not None:
                holder.call = self
                holder.drop()

    def recompute(self) -> None:
        """Call the module again, and restore the tensors that autograd still holds.

        Raises:
            RecomputationError: What the call depends on has changed since.
        """
        self._check()
        inputs = {
            key: tensor.detach().requires_grad_(is_required)
            for key, (tensor, is_required, _) in self._tensors.items()
        }
        args, kwargs = tree_unflatten(
            [inputs[leaf.key] if type(leaf) is _Tensor else leaf for leaf in self._leaves],
            self._structure,
        )
        wanted = [
            index
            for index, reference in enumerate(self._saved)
            if (holder := reference()) is not None and holder.tensor is None
        ]
        last, num_saved = wanted[-1], 0

        @mark_internal
        def restore(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal num_saved
            index, num_saved = num_saved, num_saved + 1
            if index <= last:
                holder = self._saved[index]()
                if holder is not None and holder.tensor is None:
                    if (tensor.shape, tensor.dtype) != (holder.shape, holder.dtype):
                        raise self._other_tensors()
                    holder.restore(tensor)
            if index >= last:
                raise _EnoughError
            # without its graph: one that holds its own outputs would never be released
            return tensor.detach()

        autocast = torch.autocast("cpu", self._autocast_dtype, self._autocasts, self._caches_casts)
        random_state = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            with (
                within_call(),
                self._state.restored(),
                torch.enable_grad(),
                autocast,
                saved_tensors_hooks(restore, _same),
            ):
                self._function(*args, **kwargs)
        except _EnoughError:
            pass
        finally:
            torch.set_rng_state(random_state)
        if num_saved <= last:
            raise self._other_tensors()

    def _check(self) -> None:
        """Raise RecomputationError if what the call depends on has changed in place."""
        changed = self._changed()
        if changed is not None:
            raise RecomputationError(
                f"the activations of {self.name}",
                "must be computed again from what the module was called with",
                found=f"a tensor of shape {tuple(changed.shape)} changed in place since",
                do="Train without --memory-limit, or with a smaller batch.",
            )

    def _changed(self) -> torch.Tensor | None:
        """Return a tensor that was changed in place since the call; None if there is none."""
        changed = self._state.changed()
        if changed is not None:
            return changed
        return next(
            (each for each, _, version in self._tensors.values() if each._version != version), None
        )

    def _other_tensors(self) -> RecomputationError:
        return RecomputationError(
            f"the activations of {self.name}",
            "must be the same when they are computed again",
            found="other tensors than at first",
            do="Train without --memory-limit: its forward depends on more than its inputs.",
        )

    def __del__(self) -> None:
        for address in self._held:
            self._count.remove(address)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
