"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from cputrain.errors import UsageError
from cputrain.quantities import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2H", 7200), ("1d", 86400)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "-1", "nan", "inf", "1y", "1e99"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        parse_duration(text, "--timeout")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("800M", 800 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1kb", 1024)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "G", "0", "-1G", "nan", "inf", "2X"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_size(text, "--memory")
