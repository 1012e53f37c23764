"""Shares for ranks of unequal speed, with the same result as training in one process.

    share = cputrain.split.rank_share()
    loader = DataLoader(data, batch_sampler=share.sampler(data, batch_size=256, shuffle=True))
    model = DistributedDataParallel(model)
    share.attach(model)

A rank that is twice as fast gets twice the samples. DistributedDataParallel averages gradients over
ranks, which then is not the mean over samples; `attach` weights each rank's gradients by its number
of samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import Sampler

from cputrain.counting import counted
from cputrain.errors import ArgumentTypeError, UsageError
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized
    from typing import Any

    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

TRIALS = 5
"""Measured steps, after one for warm-up."""


def rank_share(
    step: Callable[[], Any] | None = None, *, weights: Sequence[float] | None = None
) -> RankShare:
    """Return the share of each rank, by its speed. All ranks must call this.

    Args:
        step: Work of the kind that is to be shared, the same on each rank. It is timed on all ranks
            at once; by default a small network is.
        weights: Relative speed of each rank, used instead of a measurement.
    """
    is_distributed = distributed.is_available() and distributed.is_initialized()
    rank, num_ranks = (
        (distributed.get_rank(), distributed.get_world_size()) if is_distributed else (0, 1)
    )
    if weights is None:
        weights = _all_gather(1.0 / _step_seconds(step or _small_step()), num_ranks)
    try:
        speeds = [] if isinstance(weights, str | bytes) else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        speeds = []
    if len(speeds) != num_ranks or not all(0 < speed < float("inf") for speed in speeds):
        raise (UsageError if speeds else ArgumentTypeError)(
            "weights", f"must be a number above 0 for each of the {num_ranks} ranks",
            found=repr(weights), do="Leave them out to have the ranks measured.",
        )  # fmt: skip
    return RankShare(speeds, rank)


class RankShare:
    """How many samples of each batch every rank computes."""

    def __init__(self, weights: Sequence[float], rank: int) -> None:
        self.rank = rank
        self.weights = _normalized(weights)
        """Fraction of the batch of each rank; they add up to 1."""
        self._models: list[WeightedModel] = []

    def of(self, batch: int) -> tuple[int, ...]:
        """Return the number of samples of each rank, at least 1 each."""
        if batch < len(self.weights):
            raise UsageError(
                "the batch", "must have a sample for each rank", found=counted(batch, "sample"),
                do=f"Take {len(self.weights)} or more.",
            )  # fmt: skip
        return divided(batch, self.weights)

    def sampler(
        self, data: Sized, batch_size: int, *, shuffle: bool = False, seed: int = 0,
        drop_last: bool = False,
    ) -> RankSampler:  # fmt: skip
        """Return a sampler of this rank's samples; `batch_size` is that of all ranks together."""
        return RankSampler(self, data, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def attach(self, model: DistributedDataParallel) -> None:
        """Weight the model's gradients by samples, for a loss that is a mean over them."""
        self._models.append(WeightedModel(model))

    def measure(self) -> None:
        """Update the shares by measured speed. All ranks must call it, between epochs."""
        rates = [value.rate() for value in self._models]
        rate = median(rates) if rates else 0.0
        all_rates = _all_gather(rate, len(self.weights))
        if all(0 < value < float("inf") for value in all_rates):
            self.weights = _normalized(all_rates)


class RankSampler(Sampler[list[int]]):
    """Batch sampler that yields this rank's share of each batch's indices.

    All ranks draw the same order. A last batch with fewer samples than ranks is dropped.
    """

    def __init__(
        self, share: RankShare, data: Sized, batch_size: int, *, shuffle: bool, seed: int,
        drop_last: bool,
    ) -> None:  # fmt: skip
        share.of(batch_size)
        self._share, self._data, self._batch_size = share, data, batch_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which seeds the order, as torch's DistributedSampler does."""
        self.epoch = epoch

    def __len__(self) -> int:
        num_batches, num_left = divmod(len(self._data), self._batch_size)
        return num_batches + (not self._drop_last and num_left >= len(self._share.weights))

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self._data)))
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + self.epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        for number in range(len(self)):
            batch = order[number * self._batch_size : (number + 1) * self._batch_size]
            sizes = self._share.of(len(batch))
            begin = sum(sizes[: self._share.rank])
            yield batch[begin : begin + sizes[self._share.rank]]


class WeightedModel:
    """Hooks on a model that weight its gradients and time its steps."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._group = model.process_group
        self._num_samples = 0
        self._total_samples = torch.zeros(1)
        self._total_work: Any = None
        self._started_at = 0.0
        self._rates: list[float] = []
        model.register_forward_pre_hook(self._count_samples, with_kwargs=True)
        model.register_comm_hook(None, lambda _, bucket: self._weight_gradients(bucket))

    def rate(self) -> float:
        """Return this rank's median samples per second since the last call, without waiting."""
        rates, self._rates = self._rates, []
        return median(rates) if rates else 0.0

    def _count_samples(self, _: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        tensors = (
            value for value in (*inputs, *kwargs.values()) if isinstance(value, torch.Tensor)
        )
        first = next((value for value in tensors if value.dim()), None)
        if first is None:
            raise UsageError(
                "the model", "must be given a tensor of samples", found="none",
                do="Without one nobody knows how many samples a rank has.",
            )  # fmt: skip
        self._num_samples = first.shape[0]
        self._total_samples = torch.tensor([float(self._num_samples)])
        self._total_work = distributed.all_reduce(
            self._total_samples, group=self._group, async_op=True
        )
        self._started_at = time.perf_counter()

    def _weight_gradients(self, bucket: GradBucket) -> Any:
        if bucket.is_last():
            self._rates.append(self._num_samples / (time.perf_counter() - self._started_at))
        self._total_work.wait()
        gradients = bucket.buffer()
        gradients.mul_(self._num_samples / self._total_samples.item())
        work = distributed.all_reduce(gradients, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def _all_gather(value: float, num_ranks: int) -> list[float]:
    if num_ranks == 1:
        return [value]
    values = torch.zeros(num_ranks, dtype=torch.float64)
    values[distributed.get_rank()] = value
    distributed.all_reduce(values)
    result: list[float] = values.tolist()
    return result


def _normalized(weights: Sequence[float]) -> tuple[float, ...]:
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _step_seconds(step: Callable[[], Any]) -> float:
    """Return the median time of a step while all ranks run it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
    times = []
    for _ in range(1 + TRIALS):
        started_at = time.perf_counter()
        step()
        times.append(time.perf_counter() - started_at)
    return median(times[1:])


def _small_step() -> Callable[[], Any]:
    """Return a small step: forward and backward of two linear layers and GELU."""
    samples = torch.full((256, 512), 0.01)
    wide = torch.full((2048, 512), 0.01, requires_grad=True)
    narrow = torch.full((512, 2048), 0.01, requires_grad=True)

    def step() -> None:
        output = functional.linear(functional.gelu(functional.linear(samples, wide)), narrow)
        torch.autograd.grad(output.sum(), (wide, narrow))

    return step
