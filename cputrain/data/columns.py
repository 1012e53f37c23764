"""Columns: datasets in memory whose batches are gathered, with one operation for each tensor.

Only datasets whose `__getitem__` does nothing but index are supported; a class that overrides it is
left to torch. Columns copy no data: for each batch they read the dataset's attributes anew, as its
`__getitem__` would. Where they cannot gather a batch, they return None, and torch loads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_TYPES = frozenset((int, np.int64, np.int32))
"""Types of row numbers that index a tensor as an int does; a bool is a mask."""

MANY_PARTS = 8
"""Parts of a ConcatDataset above which a batch visits only the parts that it has rows of."""


class Columns(ABC):
    """A dataset whose rows can be gathered by their numbers."""

    @abstractmethod
    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        """Return the batch that torch's collation gives for these rows; None if torch must load it.

        An exception means the same as None.

        Args:
            rows: A range, a tensor of int64, or a sequence.
        """


def columns_of(dataset: Any, *, with_lists: bool = False) -> Columns | None:
    """Return the columns of a dataset; None if its samples must be indexed one by one.

    Args:
        dataset: Any dataset with `__getitem__` and `__len__`.
        with_lists: Whether a list of tensors is supported. Stacking its tensors is no faster here
            than in torch; it only saves the cost of workers.
    """
    kind = type(dataset)
    if kind in (list, tuple):
        is_supported = with_lists and len(dataset) > 0 and is_plain(dataset[0])
        return _ListColumns(dataset) if is_supported else None
    if kind is torch.Tensor:
        is_supported = _is_usable(dataset) and not hasattr(dataset, "__getitems__")
        return _TensorColumns(dataset) if is_supported else None
    if kind is np.ndarray:
        return _ArrayColumns(dataset) if _is_plain_array(dataset) else None
    if isinstance(dataset, TensorDataset):
        if not _indexes_as(dataset, TensorDataset, "tensors"):
            return None
        tensors = dataset.tensors
        if not tensors or not all(is_plain(tensor) and _can_gather(tensor) for tensor in tensors):
            return None
        return _TensorDatasetColumns(dataset)
    if isinstance(dataset, Subset):
        if not _indexes_as(dataset, Subset, "dataset", "indices"):
            return None
        inner = columns_of(dataset.dataset, with_lists=with_lists)
        is_supported = _are_supported_indices(dataset.indices)
        return None if inner is None or not is_supported else _SubsetColumns(dataset, inner)
    if isinstance(dataset, ConcatDataset):
        if not _indexes_as(dataset, ConcatDataset, "datasets", "cumulative_sizes"):
            return None
        # the first part stands for all: batches with rows of an unsupported part are left to torch
        return _ConcatColumns(dataset) if columns_of(dataset.datasets[0]) else None
    return None


def can_gather_every_part(dataset: Any) -> bool:
    """Return whether columns can gather rows of every part of a dataset."""
    if isinstance(dataset, Subset):
        return can_gather_every_part(dataset.dataset)
    if not isinstance(dataset, ConcatDataset):
        return True  # `columns_of` has checked it
    formats = set()
    for part in dataset.datasets:
        rows: Any = part
        columns = columns_of(rows)
        if columns is None or not can_gather_every_part(rows) or not len(rows):
            return False
        try:
            batch = columns.gather(range(1))
        except Exception:  # torch's workers load such batches
            return False
        if batch is None:
            return False
        tensors = batch if isinstance(batch, list) else [batch]
        formats.add((type(batch), *((tensor.dtype, tensor.shape) for tensor in tensors)))
    return len(formats) == 1


class _TensorColumns(Columns):
    """Columns of a tensor that is used as a dataset."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        tensor = self._tensor
        if (
            tensor.requires_grad
            or type(tensor) is not torch.Tensor
            or hasattr(tensor, "__getitems__")
        ):
            return None
        return _gather_rows(tensor, rows if type(rows) is range else as_index(rows))


class _ArrayColumns(Columns):
    """Columns of a NumPy array that is used as a dataset."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        array = self._array
        if not _is_plain_array(array):  # a script can assign an array's shape and dtype
            return None
        return _gather_rows(
            torch.from_numpy(array), rows if type(rows) is range else as_index(rows)
        )


class _TensorDatasetColumns(Columns):
    """Columns of a TensorDataset."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._checked: tuple[torch.Tensor, ...] = tuple(dataset.tensors)
        """Tensors that have been checked by `_is_usable`."""

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        dataset = self._dataset
        tensors = dataset.tensors
        if _is_changed(dataset, self._kind) or len(tensors) != len(self._checked):
            return None
        index: Any = rows if type(rows) is range else as_index(rows)
        batch = []
        for tensor, checked in zip(tensors, self._checked, strict=True):
            if (tensor is not checked and not _is_usable(tensor)) or tensor.requires_grad:
                return None
            column = _gather_rows(tensor, index)
            if column is None:
                return None
            batch.append(column)
        return batch


class _ListColumns(Columns):
    """Columns of a list of tensors, which are stacked as in a worker."""

    def __init__(self, samples: Sequence[torch.Tensor]) -> None:
        self._samples = samples

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        selected = _select(self._samples, rows)
        if selected is None or not is_plain(selected[0]):
            return None
        first = selected[0]
        # as in a worker, the batch is contiguous and has the first tensor's dtype
        out = torch.empty((len(selected), *first.shape), dtype=first.dtype, device="cpu")
        return torch.stack(selected, 0, out=out)


class _SubsetColumns(Columns):
    """Columns of a Subset."""

    def __init__(self, dataset: Subset[Any], inner: Columns) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._inner = inner
        self._inner_dataset = dataset.dataset

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        if _is_changed(self._dataset, self._kind):
            return None
        if self._dataset.dataset is not self._inner_dataset:
            inner = columns_of(self._dataset.dataset)
            if inner is None:
                return None
            self._inner, self._inner_dataset = inner, self._dataset.dataset
        selected = _select(self._dataset.indices, rows)
        return None if selected is None else self._inner.gather(selected)


class _ConcatColumns(Columns):
    """Columns of a ConcatDataset."""

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._sizes: list[int] = []
        self._ends = torch.empty(0, dtype=torch.int64)
        self._parts: dict[int, tuple[Any, Columns | None]] = {}
        """Each part that has been used and its columns, by the part's index."""

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        if _is_changed(self._dataset, self._kind):
            return None
        if self._dataset.cumulative_sizes != self._sizes:
            self._sizes = list(self._dataset.cumulative_sizes)
            self._ends = torch.tensor(self._sizes)
        index = as_index(rows)
        if int(index.min()) < 0:
            index = torch.where(index < 0, index + self._sizes[-1], index)
            if int(index.min()) < 0:
                return None
        part_of_row = torch.searchsorted(self._ends, index, right=True)
        part_indices: Any = range(len(self._sizes))
        if len(part_indices) > MANY_PARTS:
            part_indices = part_of_row.unique().tolist()
        if int(part_of_row.max()) >= len(self._sizes):
            return None
        order: list[torch.Tensor] = []
        parts: list[Any] = []
        for part_index in part_indices:
            positions = (part_of_row == part_index).nonzero().view(-1)
            if not len(positions):
                continue
            begin = self._sizes[part_index - 1] if part_index else 0
            part = self._gather_part(part_index, index.index_select(0, positions) - begin)
            if part is None:
                return None
            order.append(positions)
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        if type(parts[0]) is list:
            row_order = torch.cat(order).argsort()
            if len({len(part) for part in parts}) > 1:
                return None
            columns = [_merge(column, row_order) for column in zip(*parts, strict=True)]
            return None if any(column is None for column in columns) else columns
        return _merge(parts, torch.cat(order).argsort())

    def _gather_part(self, part_index: int, index: torch.Tensor) -> Any:
        """Gather rows of one part; return None if torch must load them."""
        dataset = self._dataset.datasets[part_index]
        entry = self._parts.get(part_index)
        if entry is None or entry[0] is not dataset:
            entry = self._parts[part_index] = dataset, columns_of(dataset)
        return None if entry[1] is None else entry[1].gather(index)


def _is_changed(dataset: Any, kind: type) -> bool:
    """Return whether the script has replaced a dataset's class or its `__getitems__`."""
    return type(dataset) is not kind or "__getitems__" in vars(dataset)


def _merge(parts: Sequence[Any], row_order: torch.Tensor) -> torch.Tensor | None:
    """Return the rows of several parts in one tensor; None if dtypes or shapes differ.

    Args:
        parts: The rows of each part.
        row_order: For each row of the batch, its index in the concatenated parts.
    """
    first = parts[0]
    for part in parts:
        if (
            type(part) is not torch.Tensor
            or part.dtype is not first.dtype
            or part.shape[1:] != first.shape[1:]
        ):
            return None
    return torch.cat(list(parts)).index_select(0, row_order)


def _indexes_as(dataset: Any, base: type, *attributes: str) -> bool:
    """Return whether a dataset uses the methods of `base` and plain instance attributes."""
    kind: Any = type(dataset)
    names = ("__getitem__", "__getitems__", "__len__", "__getattribute__")
    instance_attributes = vars(dataset)
    return (
        all(getattr(kind, name, None) is getattr(base, name, None) for name in names)
        and _is_unpatched(base)
        and "__getitems__" not in instance_attributes
        and not hasattr(kind, "__getattr__")
        and all(name in instance_attributes and not hasattr(kind, name) for name in attributes)
    )


def _is_unpatched(base: Any) -> bool:
    """Return whether no script has replaced the indexing methods of a class of torch."""
    return all(
        getattr(getattr(base, name, None), "__module__", base.__module__) == base.__module__
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def is_plain(tensor: Any) -> bool:
    """Return whether a value is a strided CPU tensor of no subclass that needs no gradient."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _can_gather(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has rows of a dtype that can be gathered."""
    return tensor.dim() > 0 and tensor.shape[0] > 0 and _gathers_as_stack(tensor.dtype)


def _is_usable(tensor: Any) -> bool:
    """Return whether a value is a plain tensor whose rows can be gathered."""
    return is_plain(tensor) and _can_gather(tensor)


@cache
def _gathers_as_stack(dtype: torch.dtype) -> bool:
    """Return whether `index_select` gives the bytes that `torch.stack` gives for this dtype."""
    rows = torch.arange(6).to(dtype).view(3, 2)
    try:
        gathered = rows.index_select(0, torch.tensor([2, 0]))
        stacked = torch.stack([rows[2], rows[0]])
    except RuntimeError:  # index_select does not support this dtype
        return False
    same_type = gathered.dtype is stacked.dtype
    return same_type and torch.equal(gathered.view(torch.uint8), stacked.view(torch.uint8))


def _is_plain_array(array: np.ndarray[Any, Any]) -> bool:
    """Return whether torch collates the rows of an array as tensors of the same dtype."""
    # elements of a one-dimensional array are NumPy scalars, which torch collates by type; for a
    # read-only array torch warns
    if array.ndim < 2 or not len(array) or not array.flags.writeable:
        return False
    try:
        return _gathers_as_stack(torch.from_numpy(array).dtype)
    except (TypeError, ValueError):  # a dtype or a layout that tensors do not support
        return False


def _are_supported_indices(indices: Any) -> bool:
    """Return whether the indices of a Subset have a type that `_select` supports."""
    kind = type(indices)
    if kind is torch.Tensor:
        return is_plain(indices) and indices.dim() == 1 and indices.dtype is torch.int64
    if kind is np.ndarray:
        return indices.ndim == 1 and indices.dtype == np.int64
    return kind in (list, tuple, range)


def _select(indices: Any, rows: Any) -> Any:
    """Return `[indices[row] for row in rows]` for the supported types of `indices`, else None."""
    kind = type(indices)
    if kind in (list, tuple, range):
        if type(rows) is range:
            # (a slice beyond the end raises no error)
            return indices[rows.start : rows.stop] if rows.stop <= len(indices) else None
        if type(rows) is torch.Tensor:
            rows = rows.tolist()
        return [indices[row] for row in rows]
    if not _are_supported_indices(indices):
        return None
    index = as_index(rows)
    if kind is torch.Tensor:
        return indices[index]
    return torch.from_numpy(indices[index.numpy()])


def as_index(rows: Any) -> torch.Tensor:
    """Return row numbers as an int64 tensor; raise TypeError or ValueError for other values."""
    kind = type(rows)
    if kind is torch.Tensor:
        return rows
    if kind is range:
        return torch.arange(rows.start, rows.stop, rows.step)
    if kind not in (list, tuple) or not rows or not ROW_TYPES.issuperset(map(type, rows)):
        raise TypeError("unsupported row numbers")
    return torch.from_numpy(np.array(rows, dtype=np.int64))


def _gather_rows(tensor: torch.Tensor, rows: range | torch.Tensor) -> torch.Tensor | None:
    """Return rows of a tensor in the layout of `torch.stack`; None where that layout is unknown."""
    dim = tensor.dim()
    # rows of four and more dimensions may be in channels_last format, which torch.stack keeps
    if dim > 4 and not (tensor.is_contiguous() and min(tensor.shape) > 1):
        return None
    if type(rows) is range:
        if rows.step != 1 or not 0 <= rows.start < rows.stop <= tensor.shape[0]:
            rows = as_index(rows)
        else:
            part = tensor[rows.start : rows.stop]
            return _none_if_empty(torch.clone(part, memory_format=torch.contiguous_format))
    try:
        return _none_if_empty(tensor.index_select(0, rows))
    except (IndexError, RuntimeError):
        if int(rows.min()) >= 0:
            raise
        # negative rows count from the end
        rows = torch.where(rows < 0, rows + len(tensor), rows)
        return _none_if_empty(tensor.index_select(0, rows))


def _none_if_empty(batch: torch.Tensor) -> torch.Tensor | None:
    """Return a batch; None if it has no elements, as such batches are left to torch."""
    return batch if batch.numel() else None
