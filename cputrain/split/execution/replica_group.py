"""Who works on a call: threads, the model's views, and where each of them computes."""

from __future__ import annotations

from functools import partial

import torch

from cputrain.split.devices import current
from cputrain.split.execution.flat_params import Packed
from cputrain.split.execution.transfer import TransferStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.execution.executor import Executor, ExecutorSubset, InlineExecutor
    from cputrain.split.execution.replica import Replica
    from cputrain.split.sync.barrier import ReplicaBarrier


class ReplicaGroup:
    """One member for each part of the batch.

    Where the model is not on the CPU, the caller does the part on the model's device: autograd's
    thread for that device is the one that asks for the backward, and has none beside it.
    """

    def __init__(
        self,
        crew: Executor | ExecutorSubset | InlineExecutor,
        views: Sequence[Replica],
        home: torch.device,
        devices: Sequence[torch.device] = (),
    ) -> None:
        """By default they compute where the model is."""
        self._crew = crew
        self.views = views
        self.home = home
        self.devices = list(devices) or [home] * len(views)
        self._mirrors = {
            view.mirrors.device: view.mirrors for view in views if view.mirrors is not None
        }
        self.apart = any(device != home for device in self.devices)
        self.carries = home.type != "cpu" and self.apart
        """Whether the caller moves what goes from one device to another."""
        self._mine = None
        if home.type != "cpu" and home in self.devices:
            self._mine = self.devices.index(home)

    def run(
        self, jobs: Sequence[Callable[[], Any]], meeting: ReplicaBarrier | None = None
    ) -> list[Any]:
        """A job for each member."""
        return self._crew.run(jobs, meeting, self._mine)

    def prepare(self, call: object, number: int) -> None:
        """Have the parameters where this member needs them; by this member."""
        mirrors = self._mirrors.get(self.devices[number])
        if mirrors is not None:
            mirrors.parameters.update(call)

    def refresh(self) -> None:
        """Have the buffers there; by the caller, before anybody writes to the model's own."""
        for device in dict.fromkeys(self.devices):
            if device in self._mirrors:
                self._mirrors[device].update_buffers()
        for view in self.views:
            view.refresh()

    def write_back(self) -> None:
        """Have the model's buffers as they are after a forward; one view may have written them."""
        if self.home not in self.devices:
            self.views[0].write_back()

    def sums(self, found: Sequence[Sequence[torch.Tensor | None]]) -> list[Any]:
        """Those of each parameter, on the model's device, in the order of the members.

        Members of one device add up theirs, each as many of them as the others.
        """
        sums: list[Any] | None = None
        for device in dict.fromkeys(self.devices):
            mine = [number for number, one in enumerate(self.devices) if one == device]
            there = self._added([found[number] for number in mine], mine)
            if device != self.home and len(mine) > 1:
                pack = partial(self._packed, device, there)
                (packed,) = self._crew.some(mine[:1]).run([pack])
                road = TransferStream(self.home, device)
                with road.back():
                    there = packed.fetched(road.bring)
            if sums is None:
                sums = there
            else:
                sums = [added(pair) for pair in zip(sums, there, strict=True)]
        return sums or []

    def packed(
        self, number: int, gradients: list[torch.Tensor | None]
    ) -> Packed | list[torch.Tensor | None]:
        """A member's gradients, by this member: to be fetched, if nobody else computes there."""
        device = self.devices[number]
        if device == self.home or self.devices.count(device) > 1:
            return gradients
        return self._packed(device, gradients)

    def at(self, device: torch.device) -> AbstractContextManager[Any]:
        """Where a member computes there, and no other GPU than the model's is asked for anything.

        (CUDA makes a context of hundreds of megabytes on the first GPU where none is named.)
        """
        return current(self.home if device.type == "cpu" else device)

    def _packed(self, device: torch.device, gradients: Sequence[torch.Tensor | None]) -> Packed:
        mirrors = self._mirrors.get(device)
        with self.at(device):
            return Packed(gradients, self.home, None if mirrors is None else mirrors.packed)

    def _added(
        self, found: Sequence[Sequence[torch.Tensor | None]], members: Sequence[int]
    ) -> list[Any]:
        count = len(found[0])
        if len(found) == 1:
            return list(found[0])
        sums: list[torch.Tensor | None] = [None] * count
        sizes = [0 if one is None else one.numel() for one in found[0]]
        shares: list[list[int]] = [[] for _ in found]
        loads = [0] * len(found)
        for number in sorted(range(count), key=lambda one: -sizes[one]):
            least = loads.index(min(loads))
            shares[least].append(number)
            loads[least] += sizes[number] + 1

        def job_of(share: Sequence[int]) -> Callable[[], None]:
            def job() -> None:
                with torch.no_grad():
                    for number in share:
                        sums[number] = added([part[number] for part in found])

            return job

        self._crew.some(members).run([job_of(share) for share in shares])
        return sums


def added(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """In the order of the replicas, whatever arrived first."""
    there = [one for one in gradients if one is not None]
    if len(there) < 2:
        return there[0] if there else None
    total = there[0] + there[1]
    for one in there[2:]:
        total = total + one if total.layout is not torch.strided else total.add_(one)
    return total
