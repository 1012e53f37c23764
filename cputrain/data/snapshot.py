"""A dataset as its workers would have it: what the script replaces later does not reach it.

torch's workers have a copy of the dataset from when they start. Here the containers are copied, and
the row numbers of subsets; tensors and arrays of rows are not: they stay those of the script, as
tensors in shared memory do in torch's workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from cputrain.data.columns import is_plain


def snapshot_of(dataset: Any) -> Any:
    """Return a copy of a dataset that has columns."""
    kind = type(dataset)
    if kind is torch.Tensor:
        return dataset.detach()
    if kind is np.ndarray:
        return dataset.view()
    if kind is list:
        return list(dataset)
    changed: dict[str, Any] = {}
    if isinstance(dataset, TensorDataset):
        changed["tensors"] = tuple(map(_detached, dataset.tensors))
    elif isinstance(dataset, Subset):
        changed["dataset"] = snapshot_of(dataset.dataset)
        changed["indices"] = _copied(dataset.indices)
    elif isinstance(dataset, ConcatDataset):
        changed["datasets"] = [snapshot_of(part) for part in dataset.datasets]
        changed["cumulative_sizes"] = list(dataset.cumulative_sizes)
    else:
        return dataset
    # (copy.copy would ask the class, which may do anything)
    copied = object.__new__(kind)
    vars(copied).update(vars(dataset), **changed)
    return copied


def _detached(tensor: Any) -> Any:
    """Return a tensor on the same memory, whose shape the script does not change."""
    return tensor.detach() if is_plain(tensor) else tensor


def _copied(indices: Any) -> Any:
    if isinstance(indices, torch.Tensor):
        return indices.clone()
    return indices.copy() if isinstance(indices, list | np.ndarray) else indices
