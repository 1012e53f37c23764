"""Measuring the bandwidth of main memory, and the file that remembers it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from cputrain.errors import CputrainError, UsageError
from cputrain.machine.bandwidth import (
    CACHE,
    Bandwidth,
    load_bandwidth,
    measure_bandwidth,
    save_bandwidth,
)
from cputrain.machine.memory_copy import available_bytes

SMALL = 256 << 20  # caps the buffers of a test at 32 MiB in all
VALUE = Bandwidth(
    bandwidth_bytes_per_s=200_000_000_000,
    one_core_bytes_per_s=12_000_000_000,
    threads=32,
    buffer_bytes=64 << 20,
    spread=0.03,
    how="as told",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cpus() -> list[int]:
    """CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))[:2]


def test_a_measurement_has_numbers_and_says_how_they_came_about(cpus: list[int]) -> None:
    """One core and all of them, in buffers that the memory allows."""
    found = measure_bandwidth(cpus, seconds=0.1, memory_bytes=SMALL)
    assert found.threads == len(cpus)
    assert found.one_core_bytes_per_s > 10**8
    assert found.bandwidth_bytes_per_s > 10**8
    assert found.threads * found.buffer_bytes <= SMALL // 8
    assert "counts as 2n" in found.how
    assert "pinned" not in found.how


def test_one_cpu_is_measured_once(cpus: list[int]) -> None:
    """All of one CPU are that CPU."""
    found = measure_bandwidth(cpus[:1], seconds=0.05, memory_bytes=SMALL)
    assert found.bandwidth_bytes_per_s == found.one_core_bytes_per_s


def test_measuring_leaves_the_affinity_of_the_caller_alone(cpus: list[int]) -> None:
    """Only the copying threads are pinned, and they end."""
    before = os.sched_getaffinity(0)
    measure_bandwidth(cpus, seconds=0.02, memory_bytes=SMALL)
    assert os.sched_getaffinity(0) == before


def test_a_cpu_that_may_not_be_used_is_said() -> None:
    """The thread runs elsewhere then, which is worth knowing."""
    absent = 1 << 14
    found = measure_bandwidth([absent], seconds=0.02, memory_bytes=SMALL)
    assert f"could not be pinned to the CPUs [{absent}]" in found.how


def test_too_little_memory_is_an_error_that_says_so(cpus: list[int]) -> None:
    """A buffer that fits the cache would measure the cache."""
    with pytest.raises(CputrainError, match="Free memory"):
        measure_bandwidth(cpus, seconds=0.02, memory_bytes=1 << 20)


@pytest.mark.parametrize(("cpus", "seconds"), [([], 1.0), ([0], 0.0)])
def test_measuring_nothing_is_a_usage_error(cpus: list[int], seconds: float) -> None:
    """No CPU, or no time."""
    with pytest.raises(UsageError, match="at least one CPU"):
        measure_bandwidth(cpus, seconds=seconds)


def test_a_limit_below_what_is_free_holds() -> None:
    """The machine may have more than we are allowed."""
    assert available_bytes(4096) == 4096
    assert available_bytes(None) > 1 << 20


def test_what_was_saved_is_loaded() -> None:
    """Each under its key, and none under another."""
    assert save_bandwidth("this", VALUE) is None
    assert save_bandwidth("that", VALUE.replace(threads=2)) is None
    assert load_bandwidth("this") == (VALUE, None)
    assert load_bandwidth("that") == (VALUE.replace(threads=2), None)
    assert load_bandwidth("other") == (None, None)


def test_nothing_saved_is_no_fault() -> None:
    """The first run has no file."""
    assert load_bandwidth("this") == (None, None)


def test_the_cache_is_private_and_leaves_nothing_unfinished() -> None:
    """The folder is the user's own, and only the finished file is in it."""
    save_bandwidth("this", VALUE)
    folder = os.path.dirname(CACHE.path)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.listdir(folder) == ["bandwidth.json"]
    with open(CACHE.path, encoding="utf-8") as file:
        assert json.load(file)["schema_version"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"schema_version": 99, "bandwidth": {}}',
        b'{"schema_version": 1, "bandwidth": []}',
        b'{"schema_version": 1, "bandwidth": {"this": 5}}',
        b'{"schema_version": 1, "bandwidth": {"this": {"threads": 1}}}',
        json.dumps(
            {"schema_version": 1, "bandwidth": {"this": {**VALUE.as_json(), "threads": "many"}}}
        ).encode(),
        json.dumps(
            {"schema_version": 1, "bandwidth": {"this": {**VALUE.as_json(), "spread": 1e999}}}
        ).encode(),
    ],
)
def test_a_corrupt_file_is_ignored_with_a_message_and_can_be_replaced(content: bytes) -> None:
    """The message names the file and the command that makes it anew; saving does so."""
    os.makedirs(os.path.dirname(CACHE.path))
    with open(CACHE.path, "wb") as file:
        file.write(content)
    value, message = load_bandwidth("this")
    assert value is None
    assert message is not None
    assert CACHE.path in message
    assert "cputrain info --measure" in message
    assert save_bandwidth("this", VALUE) is None
    assert load_bandwidth("this") == (VALUE, None)


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be stops root as well."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    message = save_bandwidth("this", VALUE)
    assert message is not None
    assert "cannot be written" in message
    assert "XDG_CACHE_HOME" in message


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The XDG specification says so, and a cache that moves with the folder is none."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert CACHE.path == "/home/somebody/.cache/cputrain/bandwidth.json"


@pytest.mark.parametrize("field", ["bandwidth_bytes_per_s", "threads", "buffer_bytes"])
def test_a_bandwidth_has_no_room_for_nonsense(field: str) -> None:
    """What comes from a file is checked like everything else."""
    for wrong in (0, -1, 1.5, "1", True):
        with pytest.raises(UsageError, match=field):
            VALUE.replace(**{field: wrong})
