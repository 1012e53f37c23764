"""Shallow copies of datasets, which stand for the copies that workers would have.

torch's workers copy the dataset when they start: what the script assigns later does not reach them.
A snapshot copies containers and the indices of subsets. It shares the memory of tensors and arrays
with the script, as torch's workers do for tensors in shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from cputrain.data.columns import is_plain


def snapshot_of(dataset: Any) -> Any:
    """Return a shallow copy of a dataset that `columns_of` supports."""
    kind = type(dataset)
    if kind is torch.Tensor:
        return dataset.detach()
    if kind is np.ndarray:
        return dataset.view()
    if kind is list:
        return list(dataset)
    replaced_attributes: dict[str, Any] = {}
    if isinstance(dataset, TensorDataset):
        replaced_attributes["tensors"] = tuple(map(_detached, dataset.tensors))
    elif isinstance(dataset, Subset):
        replaced_attributes["dataset"] = snapshot_of(dataset.dataset)
        replaced_attributes["indices"] = _copied(dataset.indices)
    elif isinstance(dataset, ConcatDataset):
        replaced_attributes["datasets"] = [snapshot_of(part) for part in dataset.datasets]
        replaced_attributes["cumulative_sizes"] = list(dataset.cumulative_sizes)
    else:
        return dataset
    # copy.copy would call the class's own methods
    copy = object.__new__(kind)
    vars(copy).update(vars(dataset), **replaced_attributes)
    return copy


def _detached(tensor: Any) -> Any:
    """Return an alias of a tensor; in-place changes of the original's shape do not affect it."""
    return tensor.detach() if is_plain(tensor) else tensor


def _copied(indices: Any) -> Any:
    """Return a copy of the indices of a Subset."""
    if isinstance(indices, torch.Tensor):
        return indices.clone()
    return indices.copy() if isinstance(indices, list | np.ndarray) else indices
