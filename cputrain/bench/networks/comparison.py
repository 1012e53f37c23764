"""Train all networks on each device, in interleaved subprocesses, and summarise the results."""

from __future__ import annotations

import math
import sys
from statistics import median

from cputrain.bench.networks.cases import IMAGE_SIZE, NETWORKS
from cputrain.bench.selection import select_names
from cputrain.errors import CputrainError, NotFound, UsageError
from cputrain.measure.child import CaseFailedError, run_case
from cputrain.measure.comparison import package_versions
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, ClassVar

STEPS = 10
"""Timed steps in each round."""


class NetworkSide(Record):
    """One network on one device, over all rounds."""

    device: str
    """Name of the device: "ocl"."""

    seconds: tuple[float, ...]
    """Median step time of each round."""

    asked: float
    """Host time of a step in seconds: until Python has enqueued all operators."""

    speedup: Speedup
    """Speed-up over the last device; median and range of the per-round ratios."""

    loss_difference: float
    """Relative difference of the first step's loss from the last device's."""


class NetworkResult(Record):
    """One network at one batch size."""

    name: str
    """Name of the network."""

    batch: int
    """Batch size in samples."""

    sides: tuple[NetworkSide, ...]
    """Results by device, in the given order."""


class NetworkComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    rounds: int
    """Number of rounds."""

    side: int
    """Height and width of images in pixels."""

    devices: tuple[str, ...]
    """Devices in the given order; the last is the reference."""

    names: dict[str, str]
    """Name that each device reports."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    results: tuple[NetworkResult, ...]
    """Result of each network at each batch size."""

    title: ClassVar[str] = "Image classification networks"
    """Heading of the table."""

    @property
    def cases(self) -> tuple[NetworkComparison]:
        """The comparison itself, as the single table of the benchmark."""
        return (self,)

    def mean(self, device: str) -> float:
        """Return a device's geometric mean speed-up over the last device."""
        logs = [
            math.log(side.speedup.median)
            for result in self.results
            for side in result.sides
            if side.device == device
        ]
        return math.exp(sum(logs) / len(logs))


def compare_networks(
    names: Sequence[str] = (),
    *,
    devices: Sequence[str] = ("ocl", "cuda"),
    batches: Sequence[int] = (32, 64),
    rounds: int = 2,
    side: int = IMAGE_SIZE,
    steps: int = STEPS,
) -> NetworkComparison:
    """Train the named networks, by default all, on each device, and print progress on stderr.

    Args:
        names: Out of `NETWORKS`.
        devices: torch devices; the last is the reference.
        batches: Batch sizes.
        rounds: Number of rounds; the order of devices is reversed in every second round.
        side: Height and width of images in pixels.
        steps: Timed steps in each round.

    Raises:
        NotFound: There is no such network, or torchvision is not installed.
        UsageError: A device is not available.
        CputrainError: A subprocess failed or timed out.
    """
    networks = select_names(names, NETWORKS, "network")
    runs: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    device_names: dict[str, str] = {}
    for round_index, device in interleaved(devices, rounds):
        for batch in batches:
            request = {"networks": list(networks), "device": device, "batch": batch,
                       "side": side, "steps": steps}  # fmt: skip
            answer = _run(request)
            device_names[device] = answer["of"]
            for name, run in answer["networks"].items():
                runs.setdefault((name, batch), {}).setdefault(device, []).append(run)
            print(
                f"round {round_index + 1} of {rounds}: {device}, batch size {batch}",
                file=sys.stderr,
            )
    return NetworkComparison(
        rounds=rounds,
        side=side,
        devices=tuple(devices),
        names={device: device_names[device] for device in devices},
        versions=package_versions(),
        results=tuple(
            summarise(name, batch, runs[name, batch], devices)
            for name in networks for batch in batches
        ),
    )  # fmt: skip


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Train networks on one device in a subprocess and return its answer."""
    try:
        return run_case("cputrain.bench.networks", request)
    except CaseFailedError as error:
        if error.code == UsageError.exit_code:
            raise UsageError("--devices", "must be available", found=str(error)) from error
        if error.code == NotFound.exit_code:
            raise NotFound("torchvision", "must be installed", found=str(error)) from error
        raise CputrainError(
            f"networks on {request['device']}", "must train without error", found=str(error)
        ) from error


def summarise(
    name: str, batch: int, runs: dict[str, list[dict[str, Any]]], devices: Sequence[str]
) -> NetworkResult:
    """Compute a network's statistics from the runs of each device; the last is the reference."""
    reference_seconds = [median(run["seconds"]) for run in runs[devices[-1]]]
    reference_loss = runs[devices[-1]][0]["loss"]
    sides = []
    for device in devices:
        seconds = [median(run["seconds"]) for run in runs[device]]
        sides.append(
            NetworkSide(
                device=device,
                seconds=tuple(seconds),
                asked=median([median(run["asked"]) for run in runs[device]]),
                speedup=speedup_by_round(reference_seconds, seconds),
                loss_difference=abs(runs[device][0]["loss"] - reference_loss) / abs(reference_loss),
            )
        )
    return NetworkResult(name=name, batch=batch, sides=tuple(sides))
