"""How many workers a loader is given when the user leaves it to us."""

from __future__ import annotations

import math
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _DatasetKind

from cputrain.data import strategy as paths
from cputrain.data.random_states import ProcessStates, SamplerStates
from cputrain.machine import read_machine

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from cputrain.data.statistics import Statistics

HANDING_OVER = 0.5e-3
"""Seconds. Below this, a worker costs the script about as much as making the batch itself."""

MOST = 16
"""Workers that are started without being asked for by number."""


def first_choice(loader: DataLoader[Any]) -> tuple[int, str]:
    """How many, and why, before the first epoch; `loader` is one without workers."""
    cores = _cores()
    if loader._dataset_kind == _DatasetKind.Iterable:
        return 1, "an iterable dataset would be read once by each worker; one cannot repeat it"
    if paths.columns_of_loader(loader) is not None:
        return 0, "the data is in memory, and rows are gathered in one call"
    seconds = _seconds_a_batch(loader)
    if seconds < HANDING_OVER:
        return 0, f"a batch takes {seconds * 1e3:.2f} ms, less than a worker would save"
    if cores == 1:
        return 1, f"a batch takes {seconds * 1e3:.1f} ms, and there is one core"
    count = max(1, min(MOST, cores // 4))
    return count, (
        f"a batch takes {seconds * 1e3:.1f} ms; a quarter of {cores} cores, until an epoch has "
        "shown how fast they are consumed"
    )


def next_choice(workers: int, before: Statistics, after: Statistics, seconds: float) -> int:
    """How many from now on, by what an epoch of so many seconds showed."""
    batches = after.batches - before.batches
    making = after.samples_s + after.collate_s - before.samples_s - before.collate_s
    waited = after.waited_s - before.waited_s
    computing = seconds - waited
    if batches < 10 or workers == 0 or computing <= 0:
        return workers
    most = max(1, min(MOST, _cores() - 1))
    # enough to make a batch in the time in which the script consumes one, and a tenth more
    return max(1, min(most, math.ceil(1.1 * making / computing)))


def _cores() -> int:
    return read_machine(detail=False).budget.physical_cores


def _seconds_a_batch(loader: DataLoader[Any]) -> float:
    """The quickest of some batches, made here with every random state put back."""
    states = SamplerStates(loader.batch_sampler), ProcessStates()
    fetcher = _DatasetKind.create_fetcher(
        loader._dataset_kind,
        loader.dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    )
    took: list[float] = []
    try:
        for rows in islice(iter(loader._index_sampler), 4):
            begin = time.perf_counter()
            fetcher.fetch(rows)
            took.append(time.perf_counter() - begin)
            if sum(took) > 1:
                break
    finally:
        for state in states:
            state.restore()
    return min(took, default=0.0)
