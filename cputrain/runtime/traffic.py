"""Count the bytes that an operator call must read and write, and its number of elements.

A count that is too high would make an operator exceed the bandwidth of caches and memory. So views
move no bytes, an expanded tensor counts with its stored elements, and a lookup of rows counts the
rows, not the table. Additional traffic of a kernel, for temporary buffers or from cache misses, is
not counted. The bytes of a step are those of its tensors, each counted once, however many operators
read it.
"""

from __future__ import annotations

from math import prod

from cputrain.runtime.flops import bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

WRITE_ONLY = frozenset({
    "zero_", "fill_", "copy_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_",
    "geometric_", "log_normal_", "cauchy_",
})  # fmt: skip
"""In-place operators that overwrite their tensor without reading it."""

SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
})  # fmt: skip
"""Factories that use only the shape and dtype of their argument."""

ALLOCATING = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_", "set_", "_efficientzerotensor",
})  # fmt: skip
"""Operators that allocate or resize without writing elements."""

GATHERING = frozenset({
    "embedding", "index_select", "gather", "index", "_unsafe_index", "take", "masked_select",
    "_embedding_bag", "_embedding_bag_forward_only",
})  # fmt: skip
"""Operators that read the elements of their first tensor that indices or a mask select."""

SCATTERING = frozenset({
    "index_put_", "_index_put_impl_", "_unsafe_index_put_", "index_add_", "index_copy_",
    "index_fill_", "index_reduce_", "scatter_", "scatter_add_", "scatter_reduce_", "put_",
    "masked_scatter_", "masked_fill_", "embedding_renorm_", "fill_diagonal_",
})  # fmt: skip
"""Operators that write the elements of their first tensor that indices or a mask select."""


class Traffic:
    """Bytes and elements of one call."""

    __slots__ = ("bytes_by_storage", "num_bytes", "num_elements", "result_storages")

    def __init__(
        self,
        num_bytes: int = 0,
        num_elements: int = 0,
        bytes_by_storage: Mapping[int, int] | None = None,
        result_storages: frozenset[int] = frozenset(),
    ) -> None:
        self.num_bytes = num_bytes
        """Bytes read plus bytes written."""
        self.num_elements = num_elements
        """Elements of the largest argument or result, where a list of tensors counts as one."""
        self.bytes_by_storage = bytes_by_storage or {}
        """Bytes read or written, whichever is more, by the address of their storage."""
        self.result_storages = result_storages
        """Addresses of the storages that the call allocated."""


class StepTraffic:
    """Bytes of the tensors that the operators of a step read or write, each tensor counted once.

    No kernels, however well they share what they read, could train this step with less traffic,
    unless a tensor stays in the caches from the operator that writes it to the last that reads it.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        """Bytes of all steps so far."""
        self._counted: dict[int, int] = {}

    def add(self, traffic: Traffic) -> None:
        """Add what a call read or wrote beyond the bytes of its storages that were counted."""
        for storage in traffic.result_storages:
            # memory that was freed and allocated again holds another tensor
            self._counted.pop(storage, None)
        for storage, size in traffic.bytes_by_storage.items():
            counted = self._counted.get(storage, 0)
            self.num_bytes += max(0, size - counted)
            self._counted[storage] = max(size, counted)

    def forget(self) -> None:
        """Begin a step: its tensors are read again, whatever the last one has read."""
        self._counted.clear()


def is_plain(torch: ModuleType, tensor: Any) -> bool:
    """Return whether a tensor is dense and strided: not sparse, nested or a wrapper subclass."""
    torch_dispatch = type(tensor).__torch_dispatch__
    return bool(
        torch_dispatch is torch.Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def tensors_in(torch: ModuleType, values: Any) -> list[Any]:
    """Return the tensors among values, including those in nested lists and tuples."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(torch, value)
    return tensors


def traffic_of(
    torch: ModuleType, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any
) -> Traffic:
    """Return the traffic of a call.

    Args:
        torch: The torch module.
        func: Operator overload that was called.
        args: Positional arguments; every tensor must be plain (see `is_plain`).
        kwargs: Keyword arguments.
        result: Result of the call.
    """
    name = func._schema.name.partition("::")[2]
    if torch.Tag.inplace_view in func.tags:
        return Traffic()
    reads, writes = _Sizes(), _Sizes()
    results = tensors_in(torch, (result,))
    result_bytes = sum(map(_stored_bytes, results))
    arguments = bind(func, args, kwargs)
    storages = set()
    is_partial = name in GATHERING or name in SCATTERING
    for argument in func._schema.arguments:
        tensors = tensors_in(torch, (arguments.get(argument.name),))
        if not tensors:
            continue
        storages |= {tensor.untyped_storage().data_ptr() for tensor in tensors}
        max_bytes = _selected_bytes(name, arguments, result_bytes) if is_partial else None
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        is_partial = False  # only the first tensor is
        if not (name in SHAPE_ONLY or (is_written and (argument.kwarg_only or name in WRITE_ONLY))):
            reads.add(tensors, max_bytes)
        if (
            is_written
            and name not in ALLOCATING
            and not _is_only_read(name, argument.name, arguments)
        ):
            writes.add(tensors, max_bytes)
    # a result that shares storage with an argument is a view, or counted as in place
    new = [tensor for tensor in results if tensor.untyped_storage().data_ptr() not in storages]
    if name not in ALLOCATING:
        writes.add(new, None)
        if not writes.by_storage() and results and not new:
            return Traffic()
    read, written = reads.by_storage(), writes.by_storage()
    return Traffic(
        sum(read.values()) + sum(written.values()),
        max(reads.max_elements, writes.max_elements),
        {base: max(read.get(base, 0), written.get(base, 0)) for base in read | written},
        frozenset(tensor.untyped_storage().data_ptr() for tensor in new),
    )


def _is_only_read(name: str, argument: str, arguments: dict[str, Any]) -> bool:
    """Return whether a mutable argument is only read, as unscaled gradients of fused steps are."""
    return (
        name.startswith("_fused_") and argument == "grads" and arguments.get("grad_scale") is None
    )


def _selected_bytes(name: str, arguments: dict[str, Any], result_bytes: int) -> int:
    """Return a lower bound for the bytes of the first tensor that indices or a mask select."""
    if name in {"embedding", "index_select", "gather", "index", "_unsafe_index", "take"}:
        return result_bytes
    if name == "masked_select":
        return result_bytes
    if name.startswith("_embedding_bag"):
        weight, indices = arguments["weight"], arguments["indices"]
        return int(indices.numel()) * int(weight.shape[-1]) * int(weight.element_size())
    for source in ("values", "source", "src"):
        value = arguments.get(source)
        if hasattr(value, "element_size"):
            return _stored_bytes(value)
    return 0  # a scalar is written: the number of selected elements is unknown


class _Sizes:
    """Bytes of tensors, where overlapping tensors count at most the bytes of their storage."""

    def __init__(self) -> None:
        self.max_elements = 0
        """Elements of the largest argument."""
        self._by_position: dict[tuple[int, int], int] = {}
        self._storage_bytes: dict[int, int] = {}

    def add(self, tensors: Sequence[Any], max_bytes: int | None) -> None:
        """Add the tensors of one argument, each with at most `max_bytes`."""
        num_elements = 0
        for tensor in tensors:
            size = _stored_bytes(tensor)
            size = size if max_bytes is None else min(size, max_bytes)
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            position = (base, tensor.storage_offset())
            self._by_position[position] = max(size, self._by_position.get(position, 0))
            self._storage_bytes[base] = storage.nbytes()
            num_elements += size // max(1, tensor.element_size())
        self.max_elements = max(self.max_elements, num_elements)

    def by_storage(self) -> dict[int, int]:
        """Return the bytes by storage; a storage counts at most with its length."""
        totals: dict[int, int] = {}
        for (base, _), size in self._by_position.items():
            totals[base] = totals.get(base, 0) + size
        return {base: min(size, self._storage_bytes[base]) for base, size in totals.items()}


def _stored_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's stored elements: an expanded dimension counts once."""
    sizes = (
        int(size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if stride or not size
    )
    return min(prod(sizes) * int(tensor.element_size()), int(tensor.untyped_storage().nbytes()))
