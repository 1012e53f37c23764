"""The rows of each batch, as tensors, in the order in which torch's samplers would list them."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Order:
    """What can be told of an epoch's batches without listing every row."""

    def __init__(
        self,
        sampler: BatchSampler,
        rows: torch.Tensor | None,
        count: int,
        at_end: Callable[[], object] = int,
    ) -> None:
        self.rows = rows
        """Row numbers; None when they are 0, 1, 2, …"""
        self._at_end = at_end
        self._batch = sampler.batch_size
        self._end = count - count % self._batch if sampler.drop_last else count

    def indices(self, begin: int) -> Iterator[torch.Tensor]:
        """Each batch's rows, from the batch of that number on."""
        assert self.rows is not None
        kept = self.rows[begin * self._batch : self._end]
        *batches, last = torch.split(kept, self._batch)
        yield from batches
        if len(last) == self._batch:
            yield last
        self._at_end()  # whoever fills the last batch looks for one more row, and draws for it
        if 0 < len(last) < self._batch:
            yield last

    def spans(self, begin: int) -> Iterator[tuple[int, int]]:
        """Each batch's first row and the row after its last, from that batch on."""
        for first in range(begin * self._batch, self._end, self._batch):
            yield first, min(first + self._batch, self._end)


def is_known(sampler: Any, rows: int) -> bool:
    """Whether `order_of` tells the order of this sampler's batches, of so many rows at most."""
    if type(sampler) is not BatchSampler:
        return False
    inner = sampler.sampler
    if type(inner) is SequentialSampler:
        return len(inner.data_source) <= rows
    return (
        type(inner) is RandomSampler
        and len(inner.data_source) <= rows
        and not inner.replacement
        and 0 < inner.num_samples <= len(inner.data_source)
        and _draws_as_torch()
    )


def order_of(sampler: BatchSampler) -> Order:
    """The order of an epoch, drawn now."""
    inner = sampler.sampler
    if isinstance(inner, RandomSampler):
        count = len(inner.data_source)
        rows, at_end = _drawn(inner, count)
        return Order(sampler, rows[: inner.num_samples], inner.num_samples, at_end)
    assert isinstance(inner, SequentialSampler)
    return Order(sampler, None, len(inner.data_source))


def _drawn(sampler: RandomSampler, count: int) -> tuple[torch.Tensor, Callable[[], object]]:
    """A permutation of all rows, as the sampler would draw it; what it draws at the end."""
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    drawn = torch.randperm(count, generator=generator)
    if sampler.num_samples < count or generator is not sampler.generator:
        return drawn, int
    # torch draws for one more round, of which it takes nothing
    return drawn, partial(torch.randperm, count, generator=generator)


@cache
def _draws_as_torch() -> bool:
    """Whether this torch's sampler still draws as it is drawn here."""
    state = torch.get_rng_state()
    try:
        for own in (False, True):
            listed: list[list[int]] = []
            after: list[list[torch.Tensor]] = []
            for ours in (False, True):
                torch.default_generator.manual_seed(5)
                generator = torch.Generator().manual_seed(7) if own else None
                sampler = RandomSampler(range(11), generator=generator)
                if ours:
                    drawn, at_end = _drawn(sampler, 11)
                    listed.append(drawn.tolist())
                    at_end()
                else:
                    listed.append(list(sampler))
                after.append(
                    [torch.get_rng_state(), *([] if generator is None else [generator.get_state()])]
                )
            if listed[0] != listed[1] or not all(map(torch.equal, *after)):
                return False
    finally:
        torch.set_rng_state(state)
    return True


def as_index(rows: Any, count: int) -> torch.Tensor | None:
    """A batch that some other sampler lists; None unless it is a list of rows there are."""
    if type(rows) is not list or not all(type(row) is int for row in rows):
        return None
    index = np.array(rows, dtype=np.int64)
    if not len(index) or index.min() < 0 or index.max() >= count:
        return None
    return torch.from_numpy(index)
