"""Common parts of comparisons: a side's timings, a case's sides, and what they were run with."""

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


class CaseResult(Record):
    """Results of one case."""

    name: str
    """Name of the case: "tensors-64-0"."""

    title: str
    """Description shown in the table's heading."""

    sides: tuple[Any, ...]
    """Compared sides, in the order of the table."""

    left_out: dict[str, str] = {}
    """Reason by name for each side that did not run or failed."""

    def side(self, name: str) -> Any:
        """Return the side with the given name."""
        return next(side for side in self.sides if side.name == name)


class Comparison(Record):
    """Result of a benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[Any, ...]
    """Results, in the order of execution."""


def package_versions(*distributions: str) -> dict[str, str]:
    """Return the versions of Python, torch, cputrain and those distributions that are installed."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from cputrain import __version__

    versions = {"python": platform.python_version()}
    for name in ("torch", *distributions):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**versions, "cputrain": __version__}
