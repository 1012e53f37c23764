"""Run each case of the device benchmark in a subprocess and summarise the results."""

from __future__ import annotations

import sys
from statistics import median

from cputrain.bench.devices.cases import CASES, select_cases
from cputrain.errors import CputrainError, UsageError
from cputrain.measure.child import CaseFailedError, run_case
from cputrain.measure.comparison import package_versions
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.devices.cases import DeviceCase

STEPS = 20
"""Steps that each side runs in each round; their mean is the round's step time."""


class DeviceSide(Record):
    """One device alone, or all devices with sharded batches, over all rounds."""

    name: str
    """Name of the device, or "split" for sharded batches."""

    seconds: tuple[float, ...]
    """Step time of each round."""

    median: float
    """Median of `seconds`."""

    samples_per_second: float
    """Throughput at the median step time."""

    speedup: Speedup
    """Speed-up over the fastest single device; median and range of the per-round ratios."""

    loss_difference: float
    """Largest loss difference from the first device in early steps, relative to its first loss."""


class DeviceCaseResult(Record):
    """Results of one case."""

    name: str
    """Name of the case: "mlp-64"."""

    title: str
    """Heading of the case's table."""

    batch: int
    """Batch size in samples."""

    sides: tuple[DeviceSide, ...]
    """Each device alone, then all devices with sharded batches."""

    shares: dict[str, int] | None
    """Shard size of each device, as chosen by Split; None if Split chose none."""

    why_not: str
    """Reason why Split cannot shard the batch; empty if it decided by speed."""

    of_the_sum: float
    """Throughput with sharding, as a fraction of the sum over the single devices."""


class DeviceComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    rounds: int
    """Number of rounds."""

    quick: bool
    """Whether the cases were too small for meaningful timings."""

    devices: tuple[str, ...]
    """Devices in the given order; the first is the home device."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[DeviceCaseResult, ...]
    """Results, in the order of execution."""


def compare_devices(
    names: Sequence[str] = (),
    *,
    devices: Sequence[str] = ("cuda", "cpu"),
    batch: int | None = None,
    rounds: int = 5,
    quick: bool = False,
) -> DeviceComparison:
    """Run the named kinds or cases, by default all, and print progress on stderr.

    Args:
        names: Kinds or cases.
        devices: Two or more torch devices; the first is the home device.
        batch: Batch size that replaces that of every case.
        rounds: Number of rounds.
        quick: Whether to run small cases, without meaningful timings.

    Raises:
        UsageError: Fewer than two devices, or a device that torch does not have.
        NotFound: There is no such kind or case.
        CputrainError: A case failed or timed out.
    """
    if len(devices) < 2 or "split" in devices:
        raise UsageError(
            "--devices",
            "must name two or more devices",
            found=",".join(devices),
            do="Try cuda,cpu.",
        )
    selected = [case for name in names or CASES for case in select_cases(name, quick=quick)]
    if batch is not None:
        selected = [case.replace(batch=batch) for case in selected]
    return DeviceComparison(
        rounds=rounds,
        quick=quick,
        devices=tuple(devices),
        versions=package_versions(),
        cases=tuple(_compare_case(case, devices, rounds, quick) for case in selected),
    )


def _compare_case(
    case: DeviceCase, devices: Sequence[str], rounds: int, quick: bool
) -> DeviceCaseResult:
    request = {
        "case": case.name,
        "batch": case.batch,
        "devices": list(devices),
        "rounds": rounds,
        "steps": 2 if quick else STEPS,
        "quick": quick,
    }
    try:
        answer = run_case("cputrain.bench.devices", request)
    except CaseFailedError as error:
        if error.code == UsageError.exit_code:
            raise UsageError("--devices", "must be available", found=str(error)) from error
        raise CputrainError(
            f"the case {case.name}", "must run without error", found=str(error)
        ) from error
    result = summarise(case, answer)
    split = result.sides[-1]
    print(
        f"{case.name}: sharded {split.speedup.median:.2f} times as fast as the fastest device, "
        f"{result.of_the_sum:.2f} of the devices' added throughput",
        file=sys.stderr,
    )
    return result


def summarise(case: DeviceCase, answer: dict[str, Any]) -> DeviceCaseResult:
    """Compute a case's statistics from the step times of all rounds.

    Args:
        case: The case.
        answer: What the subprocess returned: see `cputrain.bench.devices.runs.run`.
    """
    seconds: dict[str, list[float]] = answer["seconds"]
    single_seconds = {name: step_times for name, step_times in seconds.items() if name != "split"}
    fastest = min(single_seconds, key=lambda name: median(single_seconds[name]))
    sides = []
    for name, step_times in seconds.items():
        sides.append(
            DeviceSide(
                name=name,
                seconds=tuple(step_times),
                median=median(step_times),
                samples_per_second=case.batch / median(step_times),
                speedup=speedup_by_round(seconds[fastest], step_times),
                loss_difference=answer["losses"][name],
            )
        )
    total_samples_per_second = sum(
        side.samples_per_second for side in sides if side.name != "split"
    )
    return DeviceCaseResult(
        name=case.name,
        title=f"{case.title}, {case.batch} samples",
        batch=case.batch,
        sides=tuple(sides),
        shares=answer["shares"],
        why_not=answer["why_not"],
        of_the_sum=sides[-1].samples_per_second / total_samples_per_second,
    )
