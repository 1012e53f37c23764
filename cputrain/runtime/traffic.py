"""Count the bytes that one operator call must read and write, and the elements it goes over.

A count that is too high makes an operator exceed what caches and memory can do. So views move
nothing, what is expanded counts as it is stored, and an operator that looks up rows is counted with
the rows, not with the table. What a kernel moves beyond that, for buffers of its own or for want
of cache, is not counted.
"""

from __future__ import annotations

from math import prod

from cputrain.runtime.flops import bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType
    from typing import Any

WRITE_ONLY = frozenset({
    "zero_", "fill_", "copy_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_",
    "geometric_", "log_normal_", "cauchy_",
})  # fmt: skip
"""Operators in place that do not read what they write."""

SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
})  # fmt: skip
"""Operators that do not read what they are given."""

ALLOCATING = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_", "set_", "_efficientzerotensor",
})  # fmt: skip
"""Operators that write nothing."""

LOOKING_UP = frozenset({
    "embedding", "index_select", "gather", "index", "_unsafe_index", "take", "masked_select",
    "_embedding_bag", "_embedding_bag_forward_only",
})  # fmt: skip
"""Operators that read a part of their first tensor, which indices name."""

SCATTERING = frozenset({
    "index_put_", "_index_put_impl_", "_unsafe_index_put_", "index_add_", "index_copy_",
    "index_fill_", "index_reduce_", "scatter_", "scatter_add_", "scatter_reduce_", "put_",
    "masked_scatter_", "masked_fill_", "embedding_renorm_", "fill_diagonal_",
})  # fmt: skip
"""Operators that change a part of their first tensor, which indices name."""


class Traffic:
    """The bytes and elements of one call."""

    __slots__ = ("num_bytes", "num_elements")

    def __init__(self, num_bytes: int = 0, num_elements: int = 0) -> None:
        self.num_bytes = num_bytes
        """Read and written, each byte once for each."""
        self.num_elements = num_elements
        """Of the largest argument or result, a list of tensors together."""


def is_plain(torch: ModuleType, tensor: Any) -> bool:
    """Return whether a tensor's elements lie in its own storage: not sparse, nested or wrapped."""
    dispatch = type(tensor).__torch_dispatch__
    return bool(
        dispatch is torch.Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def tensors_in(torch: ModuleType, values: Any) -> list[Any]:
    """Return the tensors among values and in their lists."""
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
    """Return what a call must move. All its tensors are plain."""
    name = func._schema.name.partition("::")[2]
    if torch.Tag.inplace_view in func.tags:
        return Traffic()
    reads, writes = _Sizes(), _Sizes()
    results = tensors_in(torch, (result,))
    num_written = sum(map(_stored_bytes, results))
    arguments = bind(func, args, kwargs)
    storages = set()
    partial = name in LOOKING_UP or name in SCATTERING
    for argument in func._schema.arguments:
        tensors = tensors_in(torch, (arguments.get(argument.name),))
        if not tensors:
            continue
        storages |= {tensor.untyped_storage().data_ptr() for tensor in tensors}
        most = _looked_up(name, arguments, num_written) if partial else None
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        partial = False  # only the first
        if not (name in SHAPE_ONLY or (is_written and (argument.kwarg_only or name in WRITE_ONLY))):
            reads.add(tensors, most)
        if is_written and name not in ALLOCATING and not _is_left(name, argument.name, arguments):
            writes.add(tensors, most)
    if name not in ALLOCATING:
        # what shares storage with an argument is a view, or was counted as written in place
        new = [one for one in results if one.untyped_storage().data_ptr() not in storages]
        writes.add(new, None)
        if not writes.num_bytes and results and not new:
            return Traffic()
    return Traffic(
        reads.num_bytes + writes.num_bytes, max(reads.most_elements, writes.most_elements)
    )


def _is_left(name: str, argument: str, arguments: dict[str, Any]) -> bool:
    """Return whether an argument that may be written is not: gradients that need no scaling."""
    return (
        name.startswith("_fused_") and argument == "grads" and arguments.get("grad_scale") is None
    )


def _looked_up(name: str, arguments: dict[str, Any], num_written: int) -> int:
    """Return the bytes of its first tensor that an operator with indices needs, at least."""
    if name in {"embedding", "index_select", "gather", "index", "_unsafe_index", "take"}:
        return num_written
    if name == "masked_select":
        return num_written
    if name.startswith("_embedding_bag"):
        weight, indices = arguments["weight"], arguments["indices"]
        return int(indices.numel()) * int(weight.shape[-1]) * int(weight.element_size())
    for source in ("values", "source", "src"):
        value = arguments.get(source)
        if hasattr(value, "element_size"):
            return _stored_bytes(value)
    return 0  # a number is written wherever indices or a mask say so


class _Sizes:
    """Bytes of tensors, each storage counted no further than it is long."""

    def __init__(self) -> None:
        self.most_elements = 0
        self._by_place: dict[tuple[int, int], int] = {}
        self._lengths: dict[int, int] = {}

    def add(self, tensors: Sequence[Any], most_bytes: int | None) -> None:
        """Add an argument: a tensor or a list of them, of which at most so much counts."""
        num_elements = 0
        for tensor in tensors:
            size = _stored_bytes(tensor)
            size = size if most_bytes is None else min(size, most_bytes)
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            place = (base, tensor.storage_offset())
            self._by_place[place] = max(size, self._by_place.get(place, 0))
            self._lengths[base] = storage.nbytes()
            num_elements += size // max(1, tensor.element_size())
        self.most_elements = max(self.most_elements, num_elements)

    @property
    def num_bytes(self) -> int:
        """All of them."""
        return sum(self._by_storage())

    def _by_storage(self) -> Iterator[int]:
        totals: dict[int, int] = {}
        for (base, _), size in self._by_place.items():
            totals[base] = totals.get(base, 0) + size
        for base, size in totals.items():
            yield min(size, self._lengths[base])


def _stored_bytes(tensor: Any) -> int:
    """Return a tensor's bytes, where an expanded dimension is stored once."""
    sizes = (
        int(size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if stride or not size
    )
    return min(prod(sizes) * int(tensor.element_size()), int(tensor.untyped_storage().nbytes()))
