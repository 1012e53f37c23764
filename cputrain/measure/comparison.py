"""Common parts of comparisons: timings of one side, and versions of the packages involved."""

from __future__ import annotations

from statistics import median

from cputrain.measure.statistics import quantile
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class TimedSide(Record):
    """Timings of one of the compared things in one case, over all rounds."""

    name: str
    """Name of the side: "python", "cputrain", "torch"."""

    seconds: tuple[float, ...]
    """Time of each round."""

    median: float
    """Median of `seconds`."""

    fastest: float
    """Minimum of `seconds`."""

    slowest: float
    """Maximum of `seconds`."""

    quartiles: tuple[float, float]
    """First and third quartile of `seconds`."""


def timings(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a TimedSide that follow from the times of all rounds."""
    return {
        "seconds": tuple(seconds),
        "median": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "quartiles": (quantile(seconds, 0.25), quantile(seconds, 0.75)),
    }


def package_versions(*distributions: str) -> dict[str, str]:
    """Return the versions of Python, torch, cputrain and those distributions that are installed."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from cputrain import __version__

    versions = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "cputrain": __version__,
    }
    for name in distributions:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
