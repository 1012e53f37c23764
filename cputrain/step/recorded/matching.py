"""Compare arguments with those of a call that was recorded, without describing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cputrain.step.recorded.arguments import Batch, CallResult, Container, Weight
from cputrain.step.recorded.deferred import DeferredTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from cputrain.step.recorded.region import Region

    Match: TypeAlias = Callable[[Any, Region], bool]
    """Whether a value is as it was; it adds tensors to the region, as describing them does."""


def match_members(members: tuple[Any, ...]) -> Match:
    """Return a function that compares the members of a tuple or list with descriptions."""
    matches = tuple(map(_match, members))
    number = len(matches)

    def is_match(values: Any, region: Region) -> bool:
        if len(values) != number:
            return False
        for matches_value, value in zip(matches, values, strict=True):
            if not matches_value(value, region):
                return False
        return True

    return is_match


def match_named(names: tuple[Any, ...], members: tuple[Any, ...]) -> Match:
    """Return a function that compares a dictionary with descriptions of its values."""
    match_values = match_members(members)

    def is_match(values: Any, region: Region) -> bool:
        return tuple(values) == names and match_values(tuple(values.values()), region)

    return is_match


def _match(description: Any) -> Match:
    """Return a function that compares a value with a description."""
    kind = type(description)
    if kind is CallResult:
        return _match_result(description.position)
    if kind is Batch:
        return _match_batch(description)
    if kind is Weight:
        return _match_weight(description.identity)
    if kind is Container:
        return _match_container(description)
    return _match_plain(description.kind, description.value)


def _match_result(position: int) -> Match:
    def is_match(value: Any, region: Region) -> bool:
        return (
            type(value) is DeferredTensor and value.position == position and value.region is region
        )

    return is_match


def _match_batch(description: Batch) -> Match:
    number = description.number
    kind, shape, stride, dtype, _, _ = description.layout

    def is_match(value: Any, region: Region) -> bool:
        if type(value) is not kind or value.requires_grad or value.layout is not torch.strided:
            return False
        batch = region.batch
        if number < len(batch):
            if batch[number] is not value:
                return False
        elif any(known is value for known in batch):
            return False
        else:
            batch.append(value)
            region.watch((value,))
        return bool(
            value.shape == shape
            and value.dtype is dtype
            and value.is_cpu
            and value.stride() == stride
        )

    return is_match if kind in {Tensor, nn.Parameter} else _no_match


def _match_weight(identity: int) -> Match:
    def is_match(value: Any, region: Region) -> bool:
        if id(value) != identity or not value.requires_grad:
            return False
        region.weights[identity] = value
        return True

    return is_match


def _match_container(description: Container) -> Match:
    kind = description.kind
    if kind is slice:
        match_parts = match_members(description.members)
        return lambda value, region: (
            type(value) is slice and match_parts((value.start, value.stop, value.step), region)
        )
    if kind is dict:
        match_values = match_named(description.keys, description.members)
    else:
        match_values = match_members(description.members)
    return lambda value, region: type(value) is kind and match_values(value, region)


def _match_plain(kind: type, expected: Any) -> Match:
    if expected is None:
        return lambda value, _region: value is None
    if kind in {float, complex} and not expected:
        return _no_match  # there is a negative zero, too
    return lambda value, _region: type(value) is kind and bool(value == expected)


def _no_match(_value: Any, _region: Region) -> bool:
    return False
