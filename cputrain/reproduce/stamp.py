"""Stamps of weights: equal if and only if names, dtypes, shapes and bits are."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn


def stamp_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, whatever their order, in hexadecimal."""
    digest = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        values = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def stamp_of_models(models: Iterable[nn.Module]) -> str:
    """Return the stamp of a model's parameters and buffers, or of several models together."""
    return stamp_of(state_of_models(models))


def state_of_models(models: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Return a model's parameters and buffers by name; of several models with their numbers."""
    states = [
        {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        for model in models
    ]
    if len(states) == 1:
        return states[0]
    return {
        f"{number}.{name}": value
        for number, state in enumerate(states)
        for name, value in state.items()
    }
