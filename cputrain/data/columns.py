"""Datasets that lie in memory, seen as columns from which a batch is gathered at once.

Only datasets whose `__getitem__` is known to do nothing but take a row are seen so: a class that
overrides it has a reason to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Columns(ABC):
    """Rows that can be gathered by their numbers."""

    rows: int

    @abstractmethod
    def gather(self, index: torch.Tensor) -> Any:
        """The batch that torch's collation makes of these rows."""

    @abstractmethod
    def span(self, begin: int, end: int) -> Any:
        """The batch of the rows from `begin` up to `end`."""

    def gather_each(self, indices: Iterable[torch.Tensor]) -> Iterator[Any]:
        """One batch after another."""
        return map(self.gather, indices)


class _Tensors(Columns):
    """One or several tensors, row by row."""

    def __init__(self, tensors: tuple[torch.Tensor, ...], *, alone: bool) -> None:
        self.tensors = tensors
        self.rows = len(tensors[0])
        self._alone = alone

    def gather(self, index: torch.Tensor) -> Any:
        select = torch.index_select
        if self._alone:
            return select(self.tensors[0], 0, index)
        return [select(tensor, 0, index) for tensor in self.tensors]

    def gather_each(self, indices: Iterable[torch.Tensor]) -> Iterator[Any]:
        # the loop that a user would write, and as quick: a call for each batch would show
        selects = [tensor.index_select for tensor in self.tensors]
        if self._alone:
            (select,) = selects
            for index in indices:
                yield select(0, index)
        elif len(selects) == 2:
            first, second = selects
            for index in indices:
                yield [first(0, index), second(0, index)]
        else:
            for index in indices:
                yield [select(0, index) for select in selects]

    def span(self, begin: int, end: int) -> Any:
        copies = [
            torch.clone(tensor[begin:end], memory_format=torch.contiguous_format)
            for tensor in self.tensors
        ]
        return copies[0] if self._alone else copies


class _Listed(Columns):
    """A list of tensors, each a row. Its rows are looked at when they are asked for."""

    def __init__(self, rows: list[Any] | tuple[Any, ...]) -> None:
        self._rows = rows
        self.rows = len(rows)

    def gather(self, index: torch.Tensor) -> Any:
        return default_collate([self._rows[row] for row in index.tolist()])

    def span(self, begin: int, end: int) -> Any:
        return default_collate(list(self._rows[begin:end]))


class _Chosen(Columns):
    """Some rows of other columns."""

    def __init__(self, columns: Columns, chosen: torch.Tensor) -> None:
        self._columns = columns
        self._chosen = chosen
        self.rows = len(chosen)

    def gather(self, index: torch.Tensor) -> Any:
        return self._columns.gather(self._chosen.index_select(0, index))

    def span(self, begin: int, end: int) -> Any:
        return self._columns.gather(self._chosen[begin:end])


class _Joined(Columns):
    """Several columns, one after another."""

    def __init__(self, parts: list[_Tensors], *, alone: bool) -> None:
        self._parts = parts
        self._ends = torch.tensor([part.rows for part in parts]).cumsum(0)
        self.rows = int(self._ends[-1])
        self._alone = alone

    def gather(self, index: torch.Tensor) -> Any:
        owner = torch.searchsorted(self._ends, index, right=True)
        batch = [
            tensor.new_empty((len(index), *tensor.shape[1:])) for tensor in self._parts[0].tensors
        ]
        for place, part in enumerate(self._parts):
            where = (owner == place).nonzero().view(-1)
            if len(where):
                begin = int(self._ends[place]) - part.rows
                rows = index.index_select(0, where) - begin
                for whole, tensor in zip(batch, part.tensors, strict=True):
                    whole.index_copy_(0, where, tensor.index_select(0, rows))
        return batch[0] if self._alone else batch

    def span(self, begin: int, end: int) -> Any:
        return self.gather(torch.arange(begin, end))


def columns_of(dataset: Any) -> Columns | None:
    """The columns of a dataset; None if its rows have to be asked for one by one."""
    kind = type(dataset)
    if kind is torch.Tensor:
        return _table((dataset,), alone=True)
    if kind is np.ndarray:
        tensor = _from_numpy(dataset)
        return None if tensor is None else _table((tensor,), alone=True)
    if kind in (list, tuple):
        # one row tells: collation looks at each, and fails as torch's does
        return _Listed(dataset) if dataset and type(dataset[0]) is torch.Tensor else None
    if isinstance(dataset, TensorDataset) and _untouched(kind, TensorDataset):
        return _table(dataset.tensors, alone=False)
    if isinstance(dataset, Subset) and _untouched(kind, Subset):
        inner, chosen = columns_of(dataset.dataset), _numbers(dataset.indices)
        if inner is None or chosen is None or not _within(chosen, inner.rows):
            return None
        return _Chosen(inner, chosen)
    if isinstance(dataset, ConcatDataset) and _untouched(kind, ConcatDataset):
        return _joined([columns_of(part) for part in dataset.datasets])
    return None


def _untouched(kind: type, base: type) -> bool:
    """Whether rows are taken as `base` takes them."""
    return all(
        getattr(kind, name, None) is getattr(base, name, None)
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def _plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dim() > 0
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _table(tensors: tuple[Any, ...], *, alone: bool) -> _Tensors | None:
    if not tensors or not all(_plain(tensor) for tensor in tensors) or not len(tensors[0]):
        return None
    return _Tensors(tuple(tensors), alone=alone)


def _joined(parts: list[Columns | None]) -> _Joined | None:
    tables = [part for part in parts if isinstance(part, _Tensors)]
    if not tables or len(tables) != len(parts):
        return None
    shapes = {
        (table._alone, tuple((tensor.shape[1:], tensor.dtype) for tensor in table.tensors))
        for table in tables
    }
    return _Joined(tables, alone=tables[0]._alone) if len(shapes) == 1 else None


def _from_numpy(array: Any) -> torch.Tensor | None:
    if not array.flags.writeable or array.ndim == 0:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # a type or a layout that tensors do not have
        return None


def _numbers(values: Any) -> torch.Tensor | None:
    """Row numbers as a tensor; None if they are anything else."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        return None
    return torch.from_numpy(array.astype(np.int64))


def _within(index: torch.Tensor, rows: int) -> bool:
    return not len(index) or (int(index.min()) >= 0 and int(index.max()) < rows)


def gathers_as_torch(columns: Columns, dataset: Any, collate: Callable[[Any], Any]) -> bool:
    """Whether a batch gathered from columns is what torch makes of the same rows."""
    theirs = collate([dataset[0], dataset[0]]), collate([dataset[0]])
    try:
        ours = columns.gather(torch.tensor([0, 0])), columns.span(0, 1)
    except RuntimeError:  # rows of this type can be stacked, and not gathered
        return False
    return all(map(_same, ours, theirs))


def _same(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.stride() == theirs.stride()
        and torch.equal(_bytes(ours), _bytes(theirs))
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
