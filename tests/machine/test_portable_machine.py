"""macOS, Windows and the BSDs: the same document, with what is not known named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from cputrain.machine import portable_machine
from cputrain.machine.facts import Machine, read_machine
from cputrain.machine.kinds import CoreKind
from cputrain.machine.portable import PortableFacts

MAC: dict[str, Any] = {
    "system": "darwin",
    "architecture": "arm64",
    "vendor": "Apple",
    "family": None,
    "model": None,
    "model_name": "Apple M2 Max",
    "isa": (),
    "logical": 12,
    "physical": 12,
    "performance_cores": 8,
    "efficiency_cores": 4,
    "memory_bytes": 64 << 30,
    "available_memory_bytes": 32 << 30,
    "affinity": None,
    "frequency_hz": None,
    "max_frequency_hz": None,
    "l2_bytes": None,
    "l3_bytes": None,
    "unknown": {"affinity": "darwin does not bind processes to CPUs"},
}


def machine_with(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Machine:
    """A machine on which portable means tell this."""
    facts = PortableFacts(**{**MAC, **changes})
    monkeypatch.setattr(portable_machine, "read_portable", lambda **_asked: facts)
    monkeypatch.setattr(sys, "platform", facts.system)
    return read_machine()


def test_a_mac_has_fast_and_frugal_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as it tells, fast ones first."""
    found = machine_with(monkeypatch)
    assert [(kind.kind, len(kind.cpus)) for kind in found.kinds] == [
        (CoreKind.PERFORMANCE, 8),
        (CoreKind.EFFICIENCY, 4),
    ]
    assert found.system == "darwin"
    assert found.budget.physical_cores == 12
    assert found.unknown["affinity"] == "darwin does not bind processes to CPUs"


def test_windows_puts_neighbours_together_in_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight fast cores with two threads each, and a mask of six CPUs."""
    found = machine_with(
        monkeypatch,
        system="win32",
        logical=16,
        physical=8,
        performance_cores=None,
        efficiency_cores=None,
        affinity=(0, 1, 2, 3, 4, 5),
    )
    assert found.topology.cores[0] == (0, 1)
    assert len(found.topology.cores) == 8
    assert found.budget.physical_cores == 3
    assert [kind.kind for kind in found.kinds] == [CoreKind.PERFORMANCE]


@pytest.mark.parametrize("physical", [None, 0, 24, 5])
def test_counts_that_cannot_be_are_survived(
    monkeypatch: pytest.MonkeyPatch, physical: int | None
) -> None:
    """Every CPU is in one core."""
    found = machine_with(
        monkeypatch, logical=12, physical=physical, performance_cores=None, efficiency_cores=None
    )
    assert sorted(cpu for core in found.topology.cores for cpu in core) == list(range(12))


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize("detail", [True, False])
def test_this_machine_is_told_by_portable_means_alone(
    monkeypatch: pytest.MonkeyPatch, system: str, detail: bool
) -> None:
    """No crash, and a document that JSON can hold."""
    monkeypatch.setattr(sys, "platform", system)
    found = read_machine(detail=detail)
    document = json.loads(json.dumps(found.document()))
    assert document["machine"]["system"] == system
    assert document["machine"]["online_cpus"]
    assert document["machine"]["unknown"]["caches"] == "it is read only on Linux"
    assert document["budget"]["physical_cores"] >= 1
