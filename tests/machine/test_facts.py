"""The machine as one value, and the document that others read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cputrain.errors import SourceError
from cputrain.machine.facts import read_machine
from cputrain.machine.source import RootSource
from tests.machine.trees import Tree, cache, machine, node


def test_a_root_without_a_machine_is_refused(tmp_path: Path) -> None:
    """With what is wanted and what to do."""
    with pytest.raises(SourceError) as caught:
        read_machine(RootSource(str(tmp_path)))
    assert "must contain /sys/devices/system/cpu or /proc/cpuinfo; found neither" in str(
        caught.value
    )
    assert caught.value.exit_code == 2


def test_the_document_has_the_keys_that_others_read() -> None:
    """Names and forms that a script may rely on."""
    tree = Tree(machine(2), cache(2, 0, [(0, 2), (1, 3)], "1M"), node(0, range(4)))
    document = json.loads(json.dumps(read_machine(tree).document()))
    assert document["schema_version"] == 1
    facts = document["machine"]
    assert facts["online_cpus"] == [0, 1, 2, 3]
    assert facts["offline_cpus"] == []
    assert facts["cores"] == [[0, 2], [1, 3]]
    assert facts["sockets"] == [[0, 1, 2, 3]]
    assert facts["l2_domains"] == [
        {"cpus": [0, 2], "size_bytes": 1 << 20},
        {"cpus": [1, 3], "size_bytes": 1 << 20},
    ]
    assert facts["l3_domains"] == []
    assert facts["numa_nodes"][0].items() >= {"id": 0, "memory_bytes": 1 << 30}.items()
    assert facts["core_kinds"][0].items() >= {"kind": "performance", "cpus": [0, 1, 2, 3]}.items()
    assert {"vendor", "model_name", "isa", "memory"} <= facts.keys()
    assert {"total_bytes", "channels_populated", "channels_possible"} <= facts["memory"].keys()
    assert {"affinity", "cpuset", "quota_cpus", "memory_bytes"} <= document["limits"].keys()
    assert document["budget"].keys() >= {"cpus", "physical_cores", "reasons"}


def test_a_launch_reads_less_and_finds_the_same_cores() -> None:
    """Caches and devices are left for reports."""
    tree = Tree(machine(4), cache(2, 0, [(0, 4)], "1M"))
    quick, whole = read_machine(tree, detail=False), read_machine(tree)
    assert quick.details is None
    assert quick.topology.l2_domains == ()
    assert quick.topology.cores == whole.topology.cores
    assert quick.budget == whole.budget


def test_a_fingerprint_can_be_read() -> None:
    """So that a difference explains itself."""
    fingerprint = read_machine(Tree(machine(4, 2, 16))).fingerprint()
    assert fingerprint == "unknown CPU, 4 cores, 8 CPUs, 1 sockets, 1 nodes, 16 GiB"


def test_this_machine_is_read() -> None:
    """Whatever it is."""
    found = read_machine()
    assert found.budget.physical_cores >= 1
    json.dumps(found.document())
