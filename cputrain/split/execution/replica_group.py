"""The replicas of a call: their threads, models and devices, and the sums of their gradients."""

from __future__ import annotations

from functools import partial

import torch

from cputrain.split.devices import device_guard
from cputrain.split.execution.flat_params import Packed
from cputrain.split.execution.transfer import TransferStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.balance.concurrency import Concurrency
    from cputrain.split.execution.executor import Executor, ExecutorSubset, InlineExecutor
    from cputrain.split.execution.replica import Replica
    from cputrain.split.sync.barrier import ReplicaBarrier


aten = torch.ops.aten


class ReplicaGroup:
    """One replica for each shard of the batch.

    Where the model is not on the CPU, the caller's thread computes the shard on the model's device:
    it is autograd's only thread for that device, and the one that runs the backward.
    """

    def __init__(
        self,
        executor: Executor | ExecutorSubset | InlineExecutor,
        replicas: Sequence[Replica],
        home: torch.device,
        devices: Sequence[torch.device] = (),
        concurrency: Concurrency | None = None,
    ) -> None:
        """Place replicas on devices.

        Args:
            executor: Runs a job for each replica.
            replicas: The replicas.
            home: The model's device.
            devices: The device of each replica; by default all are on the home device.
            concurrency: How many replicas run at a time; by default all.
        """
        self._executor = executor
        self.replicas = replicas
        self.home = home
        self.concurrency = concurrency
        self.devices = list(devices) or [home] * len(replicas)
        self._flat_params = {
            replica.flat_params.device: replica.flat_params
            for replica in replicas
            if replica.flat_params is not None
        }
        self.is_multi_device = any(device != home for device in self.devices)
        """Whether any shard is computed on another device than the model's."""
        self.caller_transfers = home.type != "cpu" and self.is_multi_device
        """Whether the caller makes the copies between devices."""
        self._caller_index = None
        if home.type != "cpu" and home in self.devices:
            self._caller_index = self.devices.index(home)

    def run(self, jobs: Sequence[Callable[[], Any]], barrier: ReplicaBarrier) -> list[Any]:
        """Run one job for each replica, with as many turns as the barrier has; return results."""
        if self.concurrency is not None:
            return self._executor.run_in_turns(jobs, barrier, barrier.num_turns)
        return self._executor.run(jobs, barrier, self._caller_index)

    def update_parameters(self, call: object, number: int) -> None:
        """Update the parameters on a replica's device, in that replica's thread."""
        flat_params = self._flat_params.get(self.devices[number])
        if flat_params is not None:
            flat_params.parameters.update(call)

    def refresh(self) -> None:
        """Update the replicas' buffers, in the caller, before a forward writes to the model's."""
        for device in dict.fromkeys(self.devices):
            if device in self._flat_params:
                self._flat_params[device].update_buffers()
        for replica in self.replicas:
            replica.refresh()

    def write_back(self) -> None:
        """Copy the first replica's buffers to the model, if no replica wrote to them directly."""
        if self.home not in self.devices:
            self.replicas[0].write_back()

    def sum_gradients(
        self,
        gradients: Sequence[Sequence[torch.Tensor | None]],
        made_of_rows: Collection[int] = (),
    ) -> list[Any]:
        """Return each parameter's gradient, summed in replica order, on the home device.

        Replicas of one device add up theirs first, each thread about as many elements as the
        others.

        Args:
            gradients: Of each replica, the gradient of each parameter.
            made_of_rows: Numbers of parameters whose sum is to be dense although replicas have
                rows.
        """
        sums: list[Any] | None = None
        for device in dict.fromkeys(self.devices):
            indices = [
                number
                for number, replica_device in enumerate(self.devices)
                if replica_device == device
            ]
            device_sums = self._sum_on_device(
                [gradients[number] for number in indices], indices, made_of_rows
            )
            if device != self.home and len(indices) > 1:
                pack = partial(self._pack, device, device_sums)
                (packed,) = self._executor.some(indices[:1]).run([pack])
                transfer = TransferStream(self.home, device)
                with transfer.receiving():
                    device_sums = packed.fetch(transfer.receive)
            if sums is None:
                sums = device_sums
            else:
                sums = [sum_in_order(pair) for pair in zip(sums, device_sums, strict=True)]
        return sums or []

    def pack_gradients(
        self, number: int, gradients: list[torch.Tensor | None]
    ) -> Packed | list[torch.Tensor | None]:
        """Pack a replica's gradients for one transfer, if it is alone on its device."""
        device = self.devices[number]
        if device == self.home or self.devices.count(device) > 1:
            return gradients
        return self._pack(device, gradients)

    def device_guard(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context manager that makes `device` current, or the home device for the CPU.

        (CUDA creates a context of hundreds of megabytes on the first GPU where no device is
        current.)
        """
        return device_guard(self.home if device.type == "cpu" else device)

    def _pack(self, device: torch.device, gradients: Sequence[torch.Tensor | None]) -> Packed:
        flat_params = self._flat_params.get(device)
        with self.device_guard(device):
            return Packed(
                gradients, self.home, None if flat_params is None else flat_params.packed_buffers
            )

    def _sum_on_device(
        self,
        gradients: Sequence[Sequence[torch.Tensor | None]],
        indices: Sequence[int],
        made_of_rows: Collection[int],
    ) -> list[Any]:
        count = len(gradients[0])
        if len(gradients) == 1 and not made_of_rows:
            return list(gradients[0])
        sums: list[torch.Tensor | None] = [None] * count
        sizes = [0 if item is None else item.numel() for item in gradients[0]]
        num_jobs = len(gradients) if self.concurrency is None else self.concurrency.num_cores
        shards: list[list[int]] = [[] for _ in range(min(num_jobs, len(gradients)))]
        loads = [0] * len(shards)
        for number in sorted(range(count), key=lambda item: -sizes[item]):
            lightest = loads.index(min(loads))
            shards[lightest].append(number)
            loads[lightest] += sizes[number] + 1

        def job_of(shard: Sequence[int]) -> Callable[[], None]:
            def job() -> None:
                with torch.no_grad():
                    for number in shard:
                        add_up = dense_sum if number in made_of_rows else sum_in_order
                        sums[number] = add_up([each[number] for each in gradients])

            return job

        self._executor.some(indices[: len(shards)]).run([job_of(shard) for shard in shards])
        return sums


def dense_sum(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Add up a table's gradients, some of which are rows, to one like the table."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present or any(gradient.layout is torch.strided for gradient in present):
        return sum_in_order([gradient.to_dense() for gradient in present])
    indices = torch.cat([gradient._indices()[0] for gradient in present])
    values = torch.cat([gradient._values() for gradient in present])
    num_rows = present[0].size(0)
    total: torch.Tensor = aten.embedding_dense_backward(values, indices, num_rows, -1, False)
    return total


def sum_in_order(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Add up gradients in replica order, so that rounding does not depend on timing."""
    present = [gradient for gradient in gradients if gradient is not None]
    if len(present) < 2:
        return present[0] if present else None
    total = present[0] + present[1]
    for gradient in present[2:]:
        total = total + gradient if total.layout is not torch.strided else total.add_(gradient)
    return total
