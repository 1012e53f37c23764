"""Whether tensors may be handed to a kernel that looks at nothing but their memory.

torch's operators dispatch on far more than memory: modes, subclasses, functorch's wrappers,
conjugate and negative bits, tangents. A kernel in the place of such operators must step aside
wherever one of these would have had a say. Each check is on the tensors as they are now: nothing
about them is remembered from one call to the next.
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
        # reading through the class, as `map` does below, costs a third of an attribute in a loop
        self._dtype_of = tensor.dtype.__get__
        self._shape_of = tensor.shape.__get__
        self._data_ptr, self._numel, self._item = tensor.data_ptr, tensor.numel, tensor.item
        self._is_contiguous = tensor.is_contiguous
        self._keys_of = torch._C._dispatch_keys
        # sparse, quantized, meta, inference and wrapped tensors have others, and so have those
        # whose negative or conjugate bit is set
        self._has_plain_keys: Callable[[Any], bool] = self._keys_of(
            torch.empty(0, device="cpu")
        ).__eq__

    def is_plain_context(self) -> bool:
        """Return whether operators called now would do nothing beyond their arithmetic."""
        torch, c = self._torch, self._torch._C
        return (
            not torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
            and (not c._len_torch_dispatch_stack() or self._are_dispatch_modes_internal())
            and (not c._len_torch_function_stack() or self._are_function_modes_devices())
            and c._functorch.peek_interpreter_stack() is None
            and self._forward_ad._current_level < 0
            and c._get_tracing_state() is None
        )

    def _are_function_modes_devices(self) -> bool:
        # torch.set_default_device is such a mode, and concerns factory functions only
        from torch.overrides import _get_current_function_mode_stack

        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return all(type(mode) is self._device_context for mode in modes)

    def _are_dispatch_modes_internal(self) -> bool:
        # those that measure what runs under cputrain, kernels included
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        modes = _get_current_dispatch_mode_stack()
        return all(type(mode).__module__.startswith("cputrain.") for mode in modes)

    def have_plain_keys(self, tensors: Sequence[Any]) -> bool:
        """Return whether all are dense CPU tensors without a subclass, wrapper or pending bit."""
        # types first: a subclass would notice that its attributes are read
        return self.types.issuperset(map(type, tensors)) and all(
            map(self._has_plain_keys, map(self._keys_of, tensors))
        )

    def are_matching(self, columns: Sequence[Column]) -> bool:
        """Return whether the tensors of each row have one shape, dtype and order in memory.

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
        """Return the number of elements of each."""
        return list(map(self._numel, tensors))

    def itemsize(self, tensor: Any) -> int:
        """Return the bytes of an element; float32 or float64."""
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
        # sorted apart: no place is covered twice if and only if each interval that begins finds
        # all that began before it ended
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
