"""Durations and sizes as people write them: "90s", "2h", "800M", "1.5GiB"."""

from __future__ import annotations

from cputrain.errors import UsageError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of each unit of a duration."""

BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""Bytes of each unit of a size."""

MAX_SECONDS = 1e9
"""The longest duration: thirty years."""

MIN_SEARCH_S, MAX_SEARCH_S = 10, 24 * 3600
"""The shortest and the longest duration of trials."""


def parse_duration(text: str, where: str) -> float:
    """Parse a duration: "90", "90s", "5m", "2h" or "1d".

    Raises:
        UsageError: It is none.
    """
    seconds = _seconds(text)
    if seconds is None:
        raise UsageError(
            where, "must be a duration", found=repr(text), do="For example: 90s, 5m or 2h."
        )
    return seconds


def parse_search_time(text: str, where: str) -> float:
    """Parse the duration of trials, from 10 seconds to a day.

    Raises:
        UsageError: It is none.
    """
    seconds = _seconds(text)
    if seconds is None or not MIN_SEARCH_S <= seconds <= MAX_SEARCH_S:
        raise UsageError(
            where, "must be a duration from 10s to 24h", found=repr(text),
            do="For example: 90s, 5m or 2h; a number alone is in seconds.",
        )  # fmt: skip
    return seconds


def _seconds(text: str) -> float | None:
    unit = text[-1:].lower()
    number = text[:-1] if unit in SECONDS else text
    try:
        seconds = float(number) * SECONDS.get(unit, 1)
    except ValueError:
        return None
    return seconds if 0 < seconds < MAX_SECONDS else None


def parse_size(text: str, where: str) -> int:
    """Parse a size in bytes: "800M", "2G" or "1.5GiB".

    Raises:
        UsageError: It is none.
    """
    stripped = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = stripped[-1:] if stripped[-1:] in BYTES else ""
    try:
        size = int(float(stripped.removesuffix(unit)) * BYTES[unit])
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise UsageError(where, "must be a size", found=repr(text), do="For example: 800M or 2G.")
    return size
