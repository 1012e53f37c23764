"""The rows of each batch, as ranges or tensors instead of lists of Python integers.

The generators here follow torch's samplers statement by statement, but handle rows in chunks. They
draw the same random numbers at the same times, and read the same attributes anew for each batch.
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
"""Batches that one `Tensor.split` cuts at first and at most; the number grows fourfold. One split
for each batch costs more, and one for all batches delays the first."""


def has_known_order(sampler: Any) -> bool:
    """Return whether `iter_batch_rows` yields the same rows as this batch sampler."""
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
        and _matches_random_sampler()
    )


def _is_on_cpu(generator: Any) -> bool:
    return type(generator) is torch.Generator and generator.device.type == "cpu"


def _length(source: Any) -> int:
    """Return the length of a data source; 0 if `len` raises."""
    try:
        return len(source)
    except Exception:  # torch's sampler calls `len` too, and raises it
        return 0


def iter_batch_rows(sampler: BatchSampler) -> Iterator[range | torch.Tensor]:
    """Yield the rows of each batch; draw random numbers when torch's sampler would."""
    inner: Any = sampler.sampler
    if type(inner) is SequentialSampler:
        return _sequential_batches(sampler, len(inner.data_source))
    chunks = _random_chunks(inner)
    return (
        _full_batches(chunks, sampler.batch_size)
        if sampler.drop_last
        else _all_batches(chunks, sampler)
    )


def _sequential_batches(sampler: BatchSampler, num_rows: int) -> Iterator[range]:
    """Yield the batches of a sequential order."""
    if sampler.drop_last:
        size = sampler.batch_size
        for begin in range(0, num_rows - size + 1, size):
            yield range(begin, begin + size)
        return
    begin = 0
    # torch reads the batch size for each batch: a script may change it in the middle of an epoch
    while begin < num_rows and sampler.batch_size > 0:
        end = min(begin + sampler.batch_size, num_rows)
        yield range(begin, end)
        begin = end


def _random_chunks(sampler: RandomSampler) -> Iterator[torch.Tensor]:
    """Yield the rows of a RandomSampler, as many at a time as it draws at once."""
    num_rows = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(seed)
    if sampler.replacement:
        for _ in range(sampler.num_samples // RANDOM_CHUNK):
            yield torch.randint(num_rows, (RANDOM_CHUNK,), dtype=torch.int64, generator=generator)
        rest = (sampler.num_samples % RANDOM_CHUNK,)
        yield torch.randint(num_rows, rest, dtype=torch.int64, generator=generator)
        return
    for _ in range(sampler.num_samples // num_rows):
        yield torch.randperm(num_rows, generator=generator)
    yield torch.randperm(num_rows, generator=generator)[: sampler.num_samples % num_rows]


def _full_batches(chunks: Iterator[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """Yield full batches of `size` rows, and drop the incomplete last one."""
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


def _all_batches(chunks: Iterator[torch.Tensor], sampler: BatchSampler) -> Iterator[torch.Tensor]:
    """Yield batches of the sampler's current batch size, and the rest as the last batch."""
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
    """Return the rows of a batch as a list of Python integers, as torch's sampler returns them."""
    if type(rows) is range:
        return list(rows)
    return rows.tolist() if type(rows) is torch.Tensor else rows


@cache
def _matches_random_sampler() -> bool:
    """Return whether `_random_chunks` gives the order and random states of this torch's sampler."""
    state = torch.get_rng_state()
    try:
        for has_generator in (False, True):
            for replacement, num_samples in ((False, None), (False, 25), (True, 70)):
                orders: list[list[int]] = []
                states: list[list[torch.Tensor]] = []
                for is_chunked in (False, True):
                    torch.default_generator.manual_seed(5)
                    generator = torch.Generator().manual_seed(7) if has_generator else None
                    sampler = RandomSampler(range(11), replacement, num_samples, generator)
                    if is_chunked:
                        orders.append(torch.cat(list(_random_chunks(sampler))).tolist())
                    else:
                        orders.append(list(sampler))
                    states_after = [torch.get_rng_state()]
                    if generator is not None:
                        states_after.append(generator.get_state())
                    states.append(states_after)
                if orders[0] != orders[1] or not all(map(torch.equal, *states)):
                    return False
    finally:
        torch.set_rng_state(state)
    return True
