"""The number of workers of a loader with `num_workers="auto"`."""

from __future__ import annotations

import math
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _DatasetKind

from cputrain.counting import counted
from cputrain.data import strategy
from cputrain.data.random_states import ProcessStates, SamplerStates
from cputrain.machine import read_machine

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from cputrain.data.statistics import Statistics

WORKER_OVERHEAD_S = 0.5e-3
"""Seconds that receiving a batch from a worker costs; quicker batches are loaded in process."""

MAX_WORKERS = 16
"""The largest number of workers that is chosen automatically."""


def initial_num_workers(loader: DataLoader[Any]) -> tuple[int, str]:
    """Return the number of workers for the first epoch, and the reason.

    Args:
        loader: The same loader with `num_workers=0`; some of its batches are timed.
    """
    num_cores = _num_cores()
    if loader._dataset_kind == _DatasetKind.Iterable:
        return 1, "each worker would yield all samples of an iterable dataset"
    if strategy.columns_of_loader(loader) is not None:
        return 0, "the data is in memory, and rows are gathered in one call"
    batch_s = _measure_batch_s(loader)
    if batch_s < WORKER_OVERHEAD_S:
        return 0, f"a batch takes {batch_s * 1e3:.2f} ms, less than a worker would save"
    if num_cores == 1:
        return 1, f"a batch takes {batch_s * 1e3:.1f} ms, and there is one core"
    num_workers = max(1, min(MAX_WORKERS, num_cores // 4))
    return num_workers, (
        f"a batch takes {batch_s * 1e3:.1f} ms; a quarter of {counted(num_cores, 'core')}, until "
        "an epoch shows how fast batches are consumed"
    )


def updated_num_workers(
    num_workers: int, before: Statistics, after: Statistics, elapsed_s: float
) -> int:
    """Return the number of workers for the next epoch, by the measurements of the last one.

    Args:
        num_workers: The number of workers of the last epoch.
        before: The loader's statistics at the beginning of that epoch.
        after: The loader's statistics at its end.
        elapsed_s: Seconds between the two.
    """
    num_batches = after.batches - before.batches
    load_s = after.samples_s + after.collate_s - before.samples_s - before.collate_s
    waited_s = after.waited_s - before.waited_s
    compute_s = elapsed_s - waited_s
    if num_batches < 10 or num_workers == 0 or compute_s <= 0:
        return num_workers
    max_workers = max(1, min(MAX_WORKERS, _num_cores() - 1))
    # enough to load batches as fast as the script consumes them, with a margin of a tenth
    return max(1, min(max_workers, math.ceil(1.1 * load_s / compute_s)))


def _num_cores() -> int:
    return read_machine(detail=False).budget.physical_cores


def _measure_batch_s(loader: DataLoader[Any]) -> float:
    """Return the shortest load time of up to four batches; restore all random states."""
    states = SamplerStates(loader.batch_sampler), ProcessStates()
    fetcher = _DatasetKind.create_fetcher(
        loader._dataset_kind,
        loader.dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    )
    durations_s: list[float] = []
    try:
        for rows in islice(iter(loader._index_sampler), 4):
            begin_s = time.perf_counter()
            fetcher.fetch(rows)
            durations_s.append(time.perf_counter() - begin_s)
            if sum(durations_s) > 1:
                break
    finally:
        for state in states:
            state.restore()
    return min(durations_s, default=0.0)
