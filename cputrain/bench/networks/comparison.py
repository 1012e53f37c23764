"""Train all networks on each device, interleaved, and summarise the results."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import sys

from cputrain.bench.child import CaseFailedError, run_case
from cputrain.bench.compare import Speedup, median
from cputrain.bench.networks.cases import SIDE, named
from cputrain.errors import CputrainError, NotFound, UsageError
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
    batch: int
    sides: tuple[NetworkSide, ...]
    """Results by device, in the given order."""


class NetworkComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    rounds: int
    side: int
    """Height and width of images in pixels."""

    devices: tuple[str, ...]
    """Devices in the given order; the last is the reference."""

    names: dict[str, str]
    """Name that each device reports."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    results: tuple[NetworkResult, ...]

    title: ClassVar[str] = "Networks of images"

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
    side: int = SIDE,
    steps: int = STEPS,
) -> NetworkComparison:
    """Train the named networks, by default all, on each device, with progress on stderr."""
    from cputrain import __version__

    chosen = named(tuple(names))
    found: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    called: dict[str, str] = {}
    for number in range(rounds):
        for device in devices if number % 2 == 0 else reversed(devices):
            for batch in batches:
                request = {"networks": list(chosen), "device": device, "batch": batch,
                           "side": side, "steps": steps}  # fmt: skip
                answer = _answer(request)
                called[device] = answer["of"]
                for name, one in answer["networks"].items():
                    found.setdefault((name, batch), {}).setdefault(device, []).append(one)
                print(
                    f"round {number + 1} of {rounds}: {device}, batches of {batch}",
                    file=sys.stderr,
                )
    return NetworkComparison(
        rounds=rounds,
        side=side,
        devices=tuple(devices),
        names={device: called[device] for device in devices},
        versions={
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "cputrain": __version__,
        },
        results=tuple(
            summarise(name, batch, found[name, batch], devices)
            for name in chosen for batch in batches
        ),
    )  # fmt: skip


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return run_case("cputrain.bench.networks", request)
    except CaseFailedError as error:
        if error.code == UsageError.exit_code:
            raise UsageError("--devices", "must be there", found=str(error)) from error
        if error.code == NotFound.exit_code:
            raise NotFound("torchvision", "must be installed", found=str(error)) from error
        raise CputrainError(
            f"networks on {request['device']}", "must come to an end", found=str(error)
        ) from error


def summarise(
    name: str, batch: int, found: dict[str, list[dict[str, Any]]], devices: Sequence[str]
) -> NetworkResult:
    """Compute a network's result from its rounds."""
    against = [median(one["seconds"]) for one in found[devices[-1]]]
    loss = found[devices[-1]][0]["loss"]
    sides = []
    for device in devices:
        seconds = [median(one["seconds"]) for one in found[device]]
        ratios = [a / b for a, b in zip(against, seconds, strict=True)]
        sides.append(
            NetworkSide(
                device=device,
                seconds=tuple(seconds),
                asked=median([median(one["asked"]) for one in found[device]]),
                speedup=Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios)),
                loss_difference=abs(found[device][0]["loss"] - loss) / abs(loss),
            )
        )
    return NetworkResult(name=name, batch=batch, sides=tuple(sides))
