"""All networks on each device in turns, and what that found."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import sys

from cputrain.bench.child import CaseFailedError, answer_of
from cputrain.bench.compare import Speedup, median
from cputrain.bench.networks.cases import SIDE, named
from cputrain.errors import CputrainError, NotFound, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, ClassVar

STEPS = 10
"""Timed, in each round."""


class NetworkSide(Record):
    """A network on one device, over all rounds."""

    device: str
    """ "ocl"."""

    seconds: tuple[float, ...]
    """Of the middle step of each round."""

    asked: float
    """Seconds in which a step was asked for: what Python takes, whatever the device."""

    speedup: Speedup
    """Of the last device's: the median of the rounds' ratios, and its ends."""

    loss_difference: float
    """Of the first step's loss from the last device's, relative to that."""


class NetworkResult(Record):
    """One network at one size of batch."""

    name: str
    batch: int
    sides: tuple[NetworkSide, ...]
    """Every device, in their order."""


class NetworkComparison(Record):
    """Everything that was found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    rounds: int
    side: int
    """Pixels of an image's side."""

    devices: tuple[str, ...]
    """In their order; the others are held against the last."""

    names: dict[str, str]
    """What each calls itself."""

    versions: dict[str, str]
    """Of Python and of the packages that took part."""

    results: tuple[NetworkResult, ...]

    title: ClassVar[str] = "Networks of images"

    @property
    def cases(self) -> tuple[NetworkComparison]:
        """One table: of all."""
        return (self,)

    def mean(self, device: str) -> float:
        """How fast a device is of the last one, in geometric mean."""
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
    """Runs those named, by default all, and tells of each round on stderr."""
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
        return answer_of("cputrain.bench.networks", request)
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
    """What a network's rounds amount to."""
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
