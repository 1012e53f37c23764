"""The row numbers of each batch, as ranges or tensors instead of lists of Python numbers.

The generators here are torch's samplers, statement by statement, with chunks of rows in the place
of single ones: what is drawn, when, and what is looked at anew for each batch are torch's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

RANDOM_CHUNK = 32
"""Rows that RandomSampler draws at once with replacement."""

FIRST_SPLIT, MAX_SPLIT = 4, 256
"""Batches split by one call, four times as many each time: a call for each costs more, one for all
delays the first batch."""


def is_known(sampler: Any) -> bool:
    """Return whether `known_batches` lists the batches of this sampler."""
    if type(sampler) is not BatchSampler or type(sampler.batch_size) is not int:
        return False
    inner = sampler.sampler
    if type(inner) is SequentialSampler:
        return _length(inner.data_source) > 0
    return (
        type(inner) is RandomSampler
        and _length(inner.data_source) > 0
        and (inner._num_samples is None or type(inner._num_samples) is int)
        and (inner.generator is None or _is_on_cpu(inner.generator))
        and _draws_as_torch()
    )


def _is_on_cpu(generator: Any) -> bool:
    return type(generator) is torch.Generator and generator.device.type == "cpu"


def _length(source: Any) -> int:
    """Return the length of a data source; 0 where torch's sampler must tell what is wrong."""
    try:
        return len(source)
    except Exception:  # whatever it is, torch's sampler asks again and raises it
        return 0


def known_batches(sampler: BatchSampler) -> Iterator[range | torch.Tensor]:
    """Yield each batch's rows, drawn when torch would draw them."""
    inner: Any = sampler.sampler
    if type(inner) is SequentialSampler:
        return _ranges(sampler, len(inner.data_source))
    chunks = _random_chunks(inner)
    return _full(chunks, sampler.batch_size) if sampler.drop_last else _filled(chunks, sampler)


def _ranges(sampler: BatchSampler, num_rows: int) -> Iterator[range]:
    if sampler.drop_last:
        size = sampler.batch_size
        for begin in range(0, num_rows - size + 1, size):
            yield range(begin, begin + size)
        return
    begin = 0
    # a script may set another batch size in the middle of an epoch, and torch heeds it
    while begin < num_rows and sampler.batch_size > 0:
        end = min(begin + sampler.batch_size, num_rows)
        yield range(begin, end)
        begin = end


def _random_chunks(sampler: RandomSampler) -> Iterator[torch.Tensor]:
    """Yield the rows that RandomSampler lists, as many at a time as it draws at once."""
    n = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(seed)
    if sampler.replacement:
        for _ in range(sampler.num_samples // RANDOM_CHUNK):
            yield torch.randint(n, (RANDOM_CHUNK,), dtype=torch.int64, generator=generator)
        rest = (sampler.num_samples % RANDOM_CHUNK,)
        yield torch.randint(n, rest, dtype=torch.int64, generator=generator)
        return
    for _ in range(sampler.num_samples // n):
        yield torch.randperm(n, generator=generator)
    yield torch.randperm(n, generator=generator)[: sampler.num_samples % n]


def _full(chunks: Iterator[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """Yield rows in batches of one size, and drop the rest."""
    rows = torch.empty(0, dtype=torch.int64)
    num_split = FIRST_SPLIT
    for chunk in chunks:
        rows = torch.cat((rows, chunk)) if len(rows) else chunk
        while len(rows) >= size:
            split = rows[: num_split * size].split(size)
            batches = [batch for batch in split if len(batch) == size]
            rows = rows[len(batches) * size :]
            yield from batches
            num_split = min(4 * num_split, MAX_SPLIT)


def _filled(chunks: Iterator[torch.Tensor], sampler: BatchSampler) -> Iterator[torch.Tensor]:
    """Yield rows in batches of the sampler's size at that time, and the rest as the last one."""
    rows = torch.empty(0, dtype=torch.int64)
    num_split = FIRST_SPLIT
    while (size := sampler.batch_size) > 0:
        if len(rows) < size:
            chunk = next(chunks, None)
            if chunk is None:
                if len(rows):
                    yield rows
                return
            rows = torch.cat((rows, chunk)) if len(rows) else chunk
            continue
        begin = 0
        for batch in rows[: num_split * size].split(size):
            if len(batch) < size or sampler.batch_size != size:
                break
            yield batch
            begin += size
        rows = rows[begin:]
        num_split = min(4 * num_split, MAX_SPLIT)


def as_list(rows: Any) -> Any:
    """Return rows as torch's sampler lists them."""
    if type(rows) is range:
        return list(rows)
    return rows.tolist() if type(rows) is torch.Tensor else rows


@cache
def _draws_as_torch() -> bool:
    """Return whether this torch's RandomSampler still lists, and draws, what is drawn here."""
    state = torch.get_rng_state()
    try:
        for own in (False, True):
            for replacement, num_samples in ((False, None), (False, 25), (True, 70)):
                listed: list[list[int]] = []
                states: list[list[torch.Tensor]] = []
                for ours in (False, True):
                    torch.default_generator.manual_seed(5)
                    generator = torch.Generator().manual_seed(7) if own else None
                    sampler = RandomSampler(range(11), replacement, num_samples, generator)
                    if ours:
                        listed.append(torch.cat(list(_random_chunks(sampler))).tolist())
                    else:
                        listed.append(list(sampler))
                    used = [torch.get_rng_state()]
                    if generator is not None:
                        used.append(generator.get_state())
                    states.append(used)
                if listed[0] != listed[1] or not all(map(torch.equal, *states)):
                    return False
    finally:
        torch.set_rng_state(state)
    return True
