"""Checks whether a kernel that only sees tensors' memory may replace torch's operators.

Torch's operators dispatch on more than memory: modes, subclasses, functorch's wrappers, conjugate
and negative bits, tangents of forward AD. A kernel must not replace operators that any of these
would change. All checks are of the tensors' current state; nothing is cached between calls.
"""

from __future__ import annotations

import operator
from itertools import chain, repeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Column = list[Any]


class PlainTensors:
    """Checks of the interpreter's state and of lists of tensors."""

    def __init__(self, torch: ModuleType) -> None:
        import torch.autograd.forward_ad as forward_ad
        from torch.utils._device import DeviceContext

        tensor = torch.Tensor
        self._torch = torch
        self._forward_ad = forward_ad
        self._device_context = DeviceContext
        self.types = {tensor, torch.nn.Parameter}
        self._dtypes = {torch.float32: 4, torch.float64: 8}
        self._formats = (torch.channels_last, torch.channels_last_3d)
        # descriptors of the class, used by `map` below, cost a third of attribute access in a loop
        self._dtype_of = tensor.dtype.__get__
        self._shape_of = tensor.shape.__get__
        self._data_ptr, self._numel, self._item = tensor.data_ptr, tensor.numel, tensor.item
        self._is_contiguous = tensor.is_contiguous
        self._keys_of = torch._C._dispatch_keys
        # sparse, quantized, meta, inference and wrapped tensors have other dispatch keys, as do
        # tensors with a negative or conjugate bit
        self._has_plain_keys: Callable[[Any], bool] = self._keys_of(
            torch.empty(0, device="cpu")
        ).__eq__

    def is_plain_context(self) -> bool:
        """Return whether operators would only compute now: no autograd, modes or tracing."""
        return not self._torch.is_grad_enabled() and self.is_eager(
            self._are_dispatch_modes_internal
        )

    def is_eager(self, are_modes_allowed: Callable[[], bool] = lambda: False) -> bool:
        """Return whether operators would compute, and record for autograd, and do nothing else.

        Args:
            are_modes_allowed: Called where dispatch modes are active.
        """
        torch, c = self._torch, self._torch._C
        return (
            not torch.is_inference_mode_enabled()
            and (not c._len_torch_dispatch_stack() or are_modes_allowed())
            and (not c._len_torch_function_stack() or self._are_function_modes_device_contexts())
            and c._functorch.peek_interpreter_stack() is None
            and self._forward_ad._current_level < 0
            and c._get_tracing_state() is None
        )

    def _are_function_modes_device_contexts(self) -> bool:
        # torch.set_default_device is such a mode, and affects factory functions only
        from torch.overrides import _get_current_function_mode_stack

        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return all(type(mode) is self._device_context for mode in modes)

    def _are_dispatch_modes_internal(self) -> bool:
        # modes of cputrain measure operators, fused kernels included
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        modes = _get_current_dispatch_mode_stack()
        return all(type(mode).__module__.startswith("cputrain.") for mode in modes)

    def have_plain_keys(self, tensors: Sequence[Any]) -> bool:
        """Return whether all are dense CPU tensors without subclass, wrapper, or conjugate bit."""
        # types first: a subclass could observe that its attributes are read
        return self.types.issuperset(map(type, tensors)) and all(
            map(self._has_plain_keys, map(self._keys_of, tensors))
        )

    def are_matching(self, columns: Sequence[Column]) -> bool:
        """Return whether the tensors of each row are equal in shape, dtype and memory format.

        Args:
            columns: Lists of equal length: parameters, gradients and states.
        """
        tensors = list(chain.from_iterable(columns))
        if not self.have_plain_keys(tensors):
            return False
        dtypes = set(map(self._dtype_of, tensors))
        if len(dtypes) != 1 or dtypes.isdisjoint(self._dtypes):
            return False
        shapes = list(map(self._shape_of, columns[0]))
        return all(list(map(self._shape_of, column)) == shapes for column in columns[1:]) and (
            all(map(self._is_contiguous, tensors))
            or all(map(self._have_one_order, zip(*columns, strict=True)))
        )

    def _have_one_order(self, row: Sequence[Any]) -> bool:
        return all(map(self._is_contiguous, row)) or any(
            all(tensor.is_contiguous(memory_format=layout) for tensor in row)
            for layout in self._formats
        )

    def numels(self, tensors: Column) -> list[int]:
        """Return the number of elements of each tensor."""
        return list(map(self._numel, tensors))

    def itemsize(self, tensor: Any) -> int:
        """Return the size of an element in bytes, of a float32 or float64 tensor."""
        return self._dtypes[tensor.dtype]

    def are_disjoint(self, columns: Sequence[Column], numels: list[int], scalars: Column) -> bool:
        """Return whether no two tensors share memory.

        Args:
            columns: Contiguous tensors of one dtype.
            numels: The number of elements of each row of `columns`.
            scalars: Tensors of one element and of one dtype.
        """
        itemsize = self.itemsize(columns[0][0])
        nbytes = [count * itemsize for count in numels]
        starts = list(map(self._data_ptr, chain.from_iterable(columns)))
        ends = list(map(operator.add, starts, nbytes * len(columns)))
        if scalars:
            addresses = list(map(self._data_ptr, scalars))
            starts += addresses
            ends += map(operator.add, addresses, repeat(self.itemsize(scalars[0])))
        # intervals are disjoint if and only if, with starts and ends sorted separately, each end is
        # at most the next start
        starts.sort()
        ends.sort()
        return all(map(operator.le, ends, starts[1:]))

    def are_step_counts(self, steps: Column, largest: int) -> bool:
        """Return whether all are 0-dim float tensors of one dtype that hold whole numbers."""
        if not self.have_plain_keys(steps):
            return False
        dtypes = set(map(self._dtype_of, steps))
        return (
            len(dtypes) == 1
            and not dtypes.isdisjoint(self._dtypes)
            and set(map(self._shape_of, steps)) == {self._torch.Size(())}
            and all(
                0 <= count <= largest and count.is_integer()
                for count in set(map(self._item, steps))
            )
        )
