"""Time one case in one process: each device alone and all with sharded batches, interleaved."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from cputrain.bench.devices.models import build_model, make_batch
from cputrain.measure.rounds import interleaved
from cputrain.split import Split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.devices.cases import DeviceCase

NUM_COMPARED_STEPS = 10
"""Number of steps whose losses are compared."""

MAX_SETTLING_STEPS = 300
"""Maximum number of steps in which load balancing must choose shard sizes."""

NUM_BATCHES = 4
"""Batches used in rotation, so that no timed step creates a batch."""


class TrainingSetup:
    """Model, optimizer and batches on one device, or sharded across several devices."""

    def __init__(
        self, case: DeviceCase, device: torch.device, split_devices: Sequence[str] = ()
    ) -> None:
        model = build_model(case).to(device)
        self.split = Split(model, split_devices) if split_devices else None
        self.model: nn.Module = self.split or model
        self.device = device
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._batches = [
            tuple(tensor.to(device) for tensor in make_batch(case, step))
            for step in range(NUM_BATCHES)
        ]
        self._steps = 0

    def step(self) -> torch.Tensor:
        """Run one training step and return its loss."""
        samples, labels = self._batches[self._steps % NUM_BATCHES]
        self._steps += 1
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(samples), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def step_seconds(self, steps: int) -> float:
        """Return the mean time of a step in seconds, after one warm-up step."""
        self.step().item()  # item() synchronizes with the device
        start_s = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        loss.item()
        return (time.perf_counter() - start_s) / steps


def run(case: DeviceCase, devices: Sequence[str], rounds: int, steps: int) -> dict[str, Any]:
    """Return step times by side and round, shard sizes, and loss differences.

    Raises:
        UsageError: A device is not available.
    """
    split = Split(nn.Linear(1, 1), devices)  # raises for an invalid device
    del split
    setups = {name: TrainingSetup(case, torch.device(name)) for name in devices}
    setups["split"] = sharded = TrainingSetup(case, torch.device(devices[0]), devices)
    losses = {
        name: [setup.step().item() for _ in range(NUM_COMPARED_STEPS)]
        for name, setup in setups.items()
    }
    assert sharded.split is not None
    for _ in range(MAX_SETTLING_STEPS):
        if sharded.split.chosen_shares is not None or sharded.split.why_not:
            break
        sharded.step()
    seconds: dict[str, list[float]] = {name: [] for name in setups}
    for _, name in interleaved(setups, rounds):
        seconds[name].append(setups[name].step_seconds(steps))
    first_losses = losses[devices[0]]
    return {
        "seconds": seconds,
        "shares": sharded.split.chosen_shares,
        "why_not": sharded.split.why_not,
        "losses": {
            name: max(abs(a - b) for a, b in zip(device_losses, first_losses, strict=True))
            / first_losses[0]
            for name, device_losses in losses.items()
        },
    }
