"""Ranks of unequal speed: each has its share of every batch, and all learn as one process would.

    share = cputrain.split.rank_share()
    loader = DataLoader(data, batch_sampler=share.sampler(data, batch_size=256, shuffle=True))
    model = DistributedDataParallel(model)
    share.attach(model)

A rank that is twice as fast has twice the samples. DistributedDataParallel takes the mean over
ranks, which is not the mean over samples then; `attach` has each rank's gradients count for its
samples.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import Sampler

from cputrain.errors import UsageError
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized
    from typing import Any

    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

TRIALS = 5
"""Times that a step is made to see how long it takes; the first is not counted."""


def rank_share(
    step: Callable[[], Any] | None = None, *, weights: Sequence[float] | None = None
) -> RankShare:
    """What each rank is to compute, by its speed. All ranks must call it.

    `step` does some of the work that is to be shared, the same in each rank: it is timed in all at
    once. Without it a small network is. `weights`, one for each rank, are taken as they are.
    """
    there = distributed.is_available() and distributed.is_initialized()
    rank, count = (distributed.get_rank(), distributed.get_world_size()) if there else (0, 1)
    if weights is None:
        weights = _gathered(1.0 / _seconds(step or _small_step()), count)
    if len(weights) != count or not all(0 < one < float("inf") for one in weights):
        raise UsageError(
            "weights", f"must be a number above 0 for each of the {count} ranks",
            found=repr(list(weights)), do="Leave them out to have the ranks measured.",
        )  # fmt: skip
    return RankShare(weights, rank)


class RankShare:
    """What each rank computes of a batch."""

    def __init__(self, weights: Sequence[float], rank: int) -> None:
        self.rank = rank
        self.weights = _parts_of_one(weights)
        """The part of each rank; together 1."""
        self._watched: list[Watched] = []

    def of(self, batch: int) -> tuple[int, ...]:
        """Samples of each rank, at least one."""
        if batch < len(self.weights):
            raise UsageError(
                "the batch", "must have a sample for each rank", found=f"{batch} samples",
                do=f"Take {len(self.weights)} or more.",
            )  # fmt: skip
        return divided(batch, self.weights)

    def sampler(
        self, data: Sized, batch_size: int, *, shuffle: bool = False, seed: int = 0,
        drop_last: bool = False,
    ) -> RankSampler:  # fmt: skip
        """This rank's samples of batches of so many, of all ranks together."""
        return RankSampler(self, data, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def attach(self, model: DistributedDataParallel) -> None:
        """Have gradients count for the samples of a rank, where its loss is a mean over them."""
        self._watched.append(Watched(model))

    def measure(self) -> None:
        """New shares by what the steps since have taken. All ranks must call it, between epochs."""
        rates = [one.rate() for one in self._watched]
        own = median(rates) if rates else 0.0
        found = _gathered(own, len(self.weights))
        if all(0 < one < float("inf") for one in found):
            self.weights = _parts_of_one(found)


class RankSampler(Sampler[list[int]]):
    """Batches of indices, of each of which this rank has its share.

    All ranks draw the same order. A last batch with fewer samples than ranks is left out.
    """

    def __init__(
        self, share: RankShare, data: Sized, batch_size: int, *, shuffle: bool, seed: int,
        drop_last: bool,
    ) -> None:  # fmt: skip
        share.of(batch_size)
        self._share, self._data, self._batch = share, data, batch_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Another order for each epoch, as with torch's DistributedSampler."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self._data), self._batch)
        return whole + (not self._drop_last and rest >= len(self._share.weights))

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self._data)))
        if self._shuffle:
            drawn = torch.Generator().manual_seed(self._seed + self.epoch)
            order = torch.randperm(len(order), generator=drawn).tolist()
        for number in range(len(self)):
            batch = order[number * self._batch : (number + 1) * self._batch]
            sizes = self._share.of(len(batch))
            begin = sum(sizes[: self._share.rank])
            yield batch[begin : begin + sizes[self._share.rank]]


class Watched:
    """A model whose gradients are weighed, and what its steps took."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._group = model.process_group
        self._samples = 0
        self._every = torch.zeros(1)
        self._counted: Any = None
        self._begin = 0.0
        self._rates: list[float] = []
        model.register_forward_pre_hook(self._see, with_kwargs=True)
        model.register_comm_hook(None, lambda _, bucket: self._weigh(bucket))

    def rate(self) -> float:
        """Samples a second of the steps since it was asked, without what others were waited for."""
        found, self._rates = self._rates, []
        return median(found) if found else 0.0

    def _see(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        tensors = (one for one in (*inputs, *named.values()) if isinstance(one, torch.Tensor))
        first = next((one for one in tensors if one.dim()), None)
        if first is None:
            raise UsageError(
                "the model", "must be given a tensor of samples", found="none",
                do="Without one nobody knows how many samples a rank has.",
            )  # fmt: skip
        self._samples = first.shape[0]
        self._every = torch.tensor([float(self._samples)])
        self._counted = distributed.all_reduce(self._every, group=self._group, async_op=True)
        self._begin = time.perf_counter()

    def _weigh(self, bucket: GradBucket) -> Any:
        if bucket.is_last():
            self._rates.append(self._samples / (time.perf_counter() - self._begin))
        self._counted.wait()
        whole = bucket.buffer()
        whole.mul_(self._samples / self._every.item())
        work = distributed.all_reduce(whole, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])


def _gathered(own: float, count: int) -> list[float]:
    if count == 1:
        return [own]
    every = torch.zeros(count, dtype=torch.float64)
    every[distributed.get_rank()] = own
    distributed.all_reduce(every)
    found: list[float] = every.tolist()
    return found


def _parts_of_one(weights: Sequence[float]) -> tuple[float, ...]:
    whole = sum(weights)
    return tuple(one / whole for one in weights)


def _seconds(step: Callable[[], Any]) -> float:
    """What it takes while all ranks do it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
    took = []
    for _ in range(1 + TRIALS):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return median(took[1:])


def _small_step() -> Callable[[], Any]:
    """Two products and what is between, forward and back; nothing is drawn for it."""
    samples = torch.full((256, 512), 0.01)
    wide = torch.full((2048, 512), 0.01, requires_grad=True)
    narrow = torch.full((512, 2048), 0.01, requires_grad=True)

    def step() -> None:
        made = functional.linear(functional.gelu(functional.linear(samples, wide)), narrow)
        torch.autograd.grad(made.sum(), (wide, narrow))

    return step
