"""Each case in a process of its own, and what that found."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from cputrain.bench.child import CaseFailedError, answer_of
from cputrain.bench.compare import Speedup, median
from cputrain.bench.devices.cases import CASES, named
from cputrain.errors import CputrainError, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.devices.cases import Case

STEPS = 20
"""Timed together, in each round."""


class DeviceSide(Record):
    """One way to train, over all rounds."""

    name: str
    """Of the device, or "split"."""

    seconds: tuple[float, ...]
    """Of a step, one value a round."""

    median: float
    """Of `seconds`."""

    samples_per_second: float
    """In the middle round."""

    speedup: Speedup
    """Against the fastest device alone: the median of the rounds' ratios, and its ends."""

    loss_difference: float
    """The largest from the first device's over the first steps, relative to the first loss."""


class DeviceCaseResult(Record):
    """What one case found."""

    name: str
    """ "mlp-64"."""

    title: str
    """What it is about."""

    batch: int
    """Samples of a step."""

    sides: tuple[DeviceSide, ...]
    """Every device alone, and divided."""

    shares: dict[str, int] | None
    """Samples of each device, as Split has chosen; None where it did not."""

    why_not: str
    """Why nothing was divided at all; empty where that was a matter of speed."""

    of_the_sum: float
    """What dividing gives of the devices' samples a second put together."""


class DeviceComparison(Record):
    """Everything that was found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    rounds: int
    """How many there were."""

    quick: bool
    """Whether there was too little to do to say anything about speed."""

    devices: tuple[str, ...]
    """In their order; the model was on the first."""

    versions: dict[str, str]
    """Of Python and of the packages that took part."""

    cases: tuple[DeviceCaseResult, ...]
    """In the order in which they ran."""


def compare_devices(
    names: Sequence[str] = (),
    *,
    devices: Sequence[str] = ("cuda", "cpu"),
    batch: int | None = None,
    rounds: int = 5,
    quick: bool = False,
) -> DeviceComparison:
    """Runs the kinds or cases named, by default all, and tells of each on stderr.

    With a `batch`, that is the samples of a step of each.
    """
    from cputrain import __version__

    if len(devices) < 2 or "split" in devices:
        raise UsageError(
            "--devices", "must be two or more", found=",".join(devices), do="Try cuda,cpu."
        )
    asked = [case for name in names or CASES for case in named(name, quick=quick)]
    if batch is not None:
        asked = [case.replace(batch=batch) for case in asked]
    return DeviceComparison(
        rounds=rounds,
        quick=quick,
        devices=tuple(devices),
        versions={
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "cputrain": __version__,
        },
        cases=tuple(_compared(case, devices, rounds, quick) for case in asked),
    )


def _compared(case: Case, devices: Sequence[str], rounds: int, quick: bool) -> DeviceCaseResult:
    request = {
        "case": case.name,
        "batch": case.batch,
        "devices": list(devices),
        "rounds": rounds,
        "steps": 2 if quick else STEPS,
        "quick": quick,
    }
    try:
        found = answer_of("cputrain.bench.devices", request)
    except CaseFailedError as error:
        if error.code == UsageError.exit_code:
            raise UsageError("--devices", "must be there", found=str(error)) from error
        raise CputrainError(
            f"the case {case.name}", "must come to an end", found=str(error)
        ) from error
    result = summarise(case, found)
    split = result.sides[-1]
    print(
        f"{case.name}: divided {split.speedup.median:.2f} times as fast as the fastest alone, "
        f"{result.of_the_sum:.2f} of the sum",
        file=sys.stderr,
    )
    return result


def summarise(case: Case, found: dict[str, Any]) -> DeviceCaseResult:
    """What a case's rounds amount to."""
    seconds: dict[str, list[float]] = found["seconds"]
    alone = {name: values for name, values in seconds.items() if name != "split"}
    fastest = min(alone, key=lambda name: median(alone[name]))
    sides = []
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(seconds[fastest], values, strict=True)]
        sides.append(
            DeviceSide(
                name=name,
                seconds=tuple(values),
                median=median(values),
                samples_per_second=case.batch / median(values),
                speedup=Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios)),
                loss_difference=found["losses"][name],
            )
        )
    together = sum(side.samples_per_second for side in sides if side.name != "split")
    return DeviceCaseResult(
        name=case.name,
        title=f"{case.title}, {case.batch} samples",
        batch=case.batch,
        sides=tuple(sides),
        shares=found["shares"],
        why_not=found["why_not"],
        of_the_sum=sides[-1].samples_per_second / together,
    )
