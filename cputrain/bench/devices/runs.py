"""Run one case in one process: each device alone and all with sharded batches, interleaved."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from cputrain.bench.devices.models import batch_of, model_of
from cputrain.split import Split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.devices.cases import Case

COMPARED = 10
"""Number of steps whose losses are compared."""

LONGEST = 300
"""Maximum number of steps for load balancing to settle."""

DATA = 4
"""Batches used in rotation, so that no batch is created while steps are timed."""


class Way:
    """Model, optimizer and batches on one device or sharded across several."""

    def __init__(self, case: Case, device: torch.device, among: Sequence[str] = ()) -> None:
        model = model_of(case).to(device)
        self.split = Split(model, among) if among else None
        self.model: nn.Module = self.split or model
        self.device = device
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._data = [tuple(one.to(device) for one in batch_of(case, step)) for step in range(DATA)]
        self._steps = 0

    def step(self) -> torch.Tensor:
        """Run one training step and return its loss."""
        samples, classes = self._data[self._steps % DATA]
        self._steps += 1
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(samples), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def timed(self, steps: int) -> float:
        """Return the mean time of a step in seconds."""
        self.step().item()  # item() synchronizes with the device
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        loss.item()
        return (time.perf_counter() - begin) / steps


def run(case: Case, devices: Sequence[str], rounds: int, steps: int) -> dict[str, Any]:
    """Return step times by side and round, shard sizes, and loss differences."""
    split = Split(nn.Linear(1, 1), devices)  # raises for an invalid device
    del split
    ways = {name: Way(case, torch.device(name)) for name in devices}
    ways["split"] = divided = Way(case, torch.device(devices[0]), devices)
    losses = {name: [way.step().item() for _ in range(COMPARED)] for name, way in ways.items()}
    assert divided.split is not None
    for _ in range(LONGEST):
        if divided.split.chosen_shares is not None or divided.split.why_not:
            break
        divided.step()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            seconds[name].append(ways[name].timed(steps))
    first = losses[devices[0]]
    return {
        "seconds": seconds,
        "shares": divided.split.chosen_shares,
        "why_not": divided.split.why_not,
        "losses": {
            name: max(abs(a - b) for a, b in zip(found, first, strict=True)) / first[0]
            for name, found in losses.items()
        },
    }
