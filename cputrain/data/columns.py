"""Datasets that lie in memory, read as columns: one gather for each tensor of a batch.

Only datasets whose `__getitem__` is known to do nothing but take a row are read so: a class that
overrides it has a reason to. Columns hold no rows. For each batch they look at the dataset anew, as
its own `__getitem__` would; what they do not know is None, and torch's way is taken for that batch.
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
"""Types of row numbers that index a tensor as a Python number does; a bool is a mask."""

MANY_PARTS = 8
"""Parts of a ConcatDataset above which those that a batch has rows of are looked for first."""


class Columns(ABC):
    """A dataset whose rows can be gathered by their numbers."""

    @abstractmethod
    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        """Return the batch that torch's collation makes of these rows; None if it is not known.

        Rows are a range, a tensor of int64, or a sequence. Any exception means the same as None.
        """


def columns_of(dataset: Any, *, with_lists: bool = False) -> Columns | None:
    """Return the columns of a dataset; None if its rows have to be taken one by one.

    A list of tensors has columns `with_lists` only: they save what a worker costs, and no more.
    """
    kind = type(dataset)
    if kind in (list, tuple):
        is_known = with_lists and len(dataset) > 0 and is_plain(dataset[0])
        return _ListColumns(dataset) if is_known else None
    if kind is torch.Tensor:
        is_known = _is_usable(dataset) and not hasattr(dataset, "__getitems__")
        return _TensorColumns(dataset) if is_known else None
    if kind is np.ndarray:
        return _ArrayColumns(dataset) if _is_plain_array(dataset) else None
    if isinstance(dataset, TensorDataset):
        if not _takes_rows_as(dataset, TensorDataset, "tensors"):
            return None
        tensors = dataset.tensors
        if not tensors or not all(is_plain(tensor) and _can_gather(tensor) for tensor in tensors):
            return None
        return _TableColumns(dataset)
    if isinstance(dataset, Subset):
        if not _takes_rows_as(dataset, Subset, "dataset", "indices"):
            return None
        inner = columns_of(dataset.dataset, with_lists=with_lists)
        is_known = _is_known_indices(dataset.indices)
        return None if inner is None or not is_known else _SubsetColumns(dataset, inner)
    if isinstance(dataset, ConcatDataset):
        if not _takes_rows_as(dataset, ConcatDataset, "datasets", "cumulative_sizes"):
            return None
        # the first part tells of the others: one that is different is left to torch
        return _ConcatColumns(dataset) if columns_of(dataset.datasets[0]) else None
    return None


def is_gathered_throughout(dataset: Any) -> bool:
    """Return whether no part of a dataset that has columns would be left to torch."""
    if isinstance(dataset, Subset):
        return is_gathered_throughout(dataset.dataset)
    if not isinstance(dataset, ConcatDataset):
        return True  # where even its first row is refused, columns_of has told
    formats = set()
    for part in dataset.datasets:
        rows: Any = part
        columns = columns_of(rows)
        if columns is None or not is_gathered_throughout(rows) or not len(rows):
            return False
        try:
            batch = columns.gather(range(1))
        except Exception:  # whatever it is: torch's workers make such batches
            return False
        if batch is None:
            return False
        tensors = batch if isinstance(batch, list) else [batch]
        formats.add((type(batch), *((tensor.dtype, tensor.shape) for tensor in tensors)))
    return len(formats) == 1


class _TensorColumns(Columns):
    """A tensor that is a dataset."""

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
        return _take(tensor, rows if type(rows) is range else as_index(rows))


class _ArrayColumns(Columns):
    """An array that is a dataset."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        array = self._array
        if not _is_plain_array(array):  # its shape and type can be set
            return None
        return _take(torch.from_numpy(array), rows if type(rows) is range else as_index(rows))


class _TableColumns(Columns):
    """A TensorDataset."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._seen: tuple[torch.Tensor, ...] = tuple(dataset.tensors)
        """Tensors that have been found to be plain."""

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        dataset = self._dataset
        tensors = dataset.tensors
        if _is_changed(dataset, self._kind) or len(tensors) != len(self._seen):
            return None
        index: Any = rows if type(rows) is range else as_index(rows)
        batch = []
        for tensor, seen in zip(tensors, self._seen, strict=True):
            if (tensor is not seen and not _is_usable(tensor)) or tensor.requires_grad:
                return None
            column = _take(tensor, index)
            if column is None:
                return None
            batch.append(column)
        return batch


class _ListColumns(Columns):
    """A list of tensors, stacked as a worker stacks them."""

    def __init__(self, samples: Sequence[torch.Tensor]) -> None:
        self._samples = samples

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        chosen = _choose(self._samples, rows)
        if chosen is None or not is_plain(chosen[0]):
            return None
        first = chosen[0]
        # the first row's type is the batch's, and its memory is dense, whatever the rows are
        out = torch.empty((len(chosen), *first.shape), dtype=first.dtype, device="cpu")
        return torch.stack(chosen, 0, out=out)


class _SubsetColumns(Columns):
    """A Subset of a dataset that has columns."""

    def __init__(self, dataset: Subset[Any], inner: Columns) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._inner = inner
        self._of = dataset.dataset

    def gather(self, rows: Sequence[int] | torch.Tensor) -> Any:
        if _is_changed(self._dataset, self._kind):
            return None
        if self._dataset.dataset is not self._of:
            inner = columns_of(self._dataset.dataset)
            if inner is None:
                return None
            self._inner, self._of = inner, self._dataset.dataset
        chosen = _choose(self._dataset.indices, rows)
        return None if chosen is None else self._inner.gather(chosen)


class _ConcatColumns(Columns):
    """A ConcatDataset of datasets that have columns."""

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        self._dataset = dataset
        self._kind = type(dataset)
        self._sizes: list[int] = []
        self._ends = torch.empty(0, dtype=torch.int64)
        self._parts: dict[int, tuple[Any, Columns | None]] = {}
        """By their places: each part that rows were taken of, and its columns."""

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
        owners = torch.searchsorted(self._ends, index, right=True)
        places: Any = range(len(self._sizes))
        if len(places) > MANY_PARTS:
            places = owners.unique().tolist()
        if int(owners.max()) >= len(self._sizes):
            return None
        order: list[torch.Tensor] = []
        parts: list[Any] = []
        for place in places:
            mine = (owners == place).nonzero().view(-1)
            if not len(mine):
                continue
            begin = self._sizes[place - 1] if place else 0
            part = self._gather_part(place, index.index_select(0, mine) - begin)
            if part is None:
                return None
            order.append(mine)
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        if type(parts[0]) is list:
            places = torch.cat(order).argsort()
            if len({len(part) for part in parts}) > 1:
                return None
            columns = [_merge(column, places) for column in zip(*parts, strict=True)]
            return None if any(column is None for column in columns) else columns
        return _merge(parts, torch.cat(order).argsort())

    def _gather_part(self, place: int, index: torch.Tensor) -> Any:
        dataset = self._dataset.datasets[place]
        known = self._parts.get(place)
        if known is None or known[0] is not dataset:
            known = self._parts[place] = dataset, columns_of(dataset)
        return None if known[1] is None else known[1].gather(index)


def _is_changed(dataset: Any, kind: type) -> bool:
    """Return whether the script has given a dataset another way to take rows."""
    return type(dataset) is not kind or "__getitems__" in vars(dataset)


def _merge(parts: Sequence[Any], places: torch.Tensor) -> torch.Tensor | None:
    """Return rows of several parts in one tensor; None where torch's collation converts some."""
    first = parts[0]
    for part in parts:
        if (
            type(part) is not torch.Tensor
            or part.dtype is not first.dtype
            or part.shape[1:] != first.shape[1:]
        ):
            return None
    return torch.cat(list(parts)).index_select(0, places)


def _takes_rows_as(dataset: Any, base: type, *attributes: str) -> bool:
    """Return whether rows are taken as `base` takes them, from attributes held by the instance."""
    kind: Any = type(dataset)
    names = ("__getitem__", "__getitems__", "__len__", "__getattribute__")
    held = vars(dataset)
    return (
        all(getattr(kind, name, None) is getattr(base, name, None) for name in names)
        and _is_torchs(base)
        and "__getitems__" not in held
        and not hasattr(kind, "__getattr__")
        and all(name in held and not hasattr(kind, name) for name in attributes)
    )


def _is_torchs(base: Any) -> bool:
    """Return whether a class of torch's has its own methods, and no script's."""
    return all(
        getattr(getattr(base, name, None), "__module__", base.__module__) == base.__module__
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is torch's own, strided, on the CPU, and known to no autograd."""
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
    return tensor.dim() > 0 and tensor.shape[0] > 0 and _gathers_as_stack(tensor.dtype)


def _is_usable(tensor: Any) -> bool:
    return is_plain(tensor) and _can_gather(tensor)


@cache
def _gathers_as_stack(dtype: torch.dtype) -> bool:
    """Return whether gathering rows of this type gives what stacking them gives."""
    rows = torch.arange(6).to(dtype).view(3, 2)
    try:
        gathered = rows.index_select(0, torch.tensor([2, 0]))
        stacked = torch.stack([rows[2], rows[0]])
    except RuntimeError:  # rows of this type can be stacked, and not gathered
        return False
    same_type = gathered.dtype is stacked.dtype
    return same_type and torch.equal(gathered.view(torch.uint8), stacked.view(torch.uint8))


def _is_plain_array(array: np.ndarray[Any, Any]) -> bool:
    # rows of one dimension are NumPy's numbers, which torch collates by their types; and of an
    # array that cannot be written to, torch warns
    if array.ndim < 2 or not len(array) or not array.flags.writeable:
        return False
    try:
        return _gathers_as_stack(torch.from_numpy(array).dtype)
    except (TypeError, ValueError):  # a type or a layout that tensors do not have
        return False


def _is_known_indices(indices: Any) -> bool:
    kind = type(indices)
    if kind is torch.Tensor:
        return is_plain(indices) and indices.dim() == 1 and indices.dtype is torch.int64
    if kind is np.ndarray:
        return indices.ndim == 1 and indices.dtype == np.int64
    return kind in (list, tuple, range)


def _choose(indices: Any, rows: Any) -> Any:
    """Return `[indices[row] for row in rows]` for what a Subset is given as its indices."""
    kind = type(indices)
    if kind in (list, tuple, range):
        if type(rows) is range:
            # (a slice ends where the list ends, and says nothing)
            return indices[rows.start : rows.stop] if rows.stop <= len(indices) else None
        if type(rows) is torch.Tensor:
            rows = rows.tolist()
        return [indices[row] for row in rows]
    if not _is_known_indices(indices):
        return None
    index = as_index(rows)
    if kind is torch.Tensor:
        return indices[index]
    return torch.from_numpy(indices[index.numpy()])


def as_index(rows: Any) -> torch.Tensor:
    """Return row numbers as a tensor; raise TypeError or ValueError if they are anything else."""
    kind = type(rows)
    if kind is torch.Tensor:
        return rows
    if kind is range:
        return torch.arange(rows.start, rows.stop, rows.step)
    if kind not in (list, tuple) or not rows or not ROW_TYPES.issuperset(map(type, rows)):
        raise TypeError("these rows are for torch")
    return torch.from_numpy(np.array(rows, dtype=np.int64))


def _take(tensor: torch.Tensor, rows: range | torch.Tensor) -> torch.Tensor | None:
    """Return rows of a tensor as torch.stack lays them out; None where that is not known."""
    dim = tensor.dim()
    # rows of four dimensions and more may be in channels_last order, which torch.stack keeps
    if dim > 4 and not (tensor.is_contiguous() and min(tensor.shape) > 1):
        return None
    if type(rows) is range:
        if rows.step != 1 or not 0 <= rows.start < rows.stop <= tensor.shape[0]:
            rows = as_index(rows)
        else:
            part = tensor[rows.start : rows.stop]
            return _unless_empty(torch.clone(part, memory_format=torch.contiguous_format))
    try:
        return _unless_empty(tensor.index_select(0, rows))
    except (IndexError, RuntimeError):
        if int(rows.min()) >= 0:
            raise
        # rows that are counted from the end
        rows = torch.where(rows < 0, rows + len(tensor), rows)
        return _unless_empty(tensor.index_select(0, rows))


def _unless_empty(batch: torch.Tensor) -> torch.Tensor | None:
    return batch if batch.numel() else None
