"""Real machines, captured: what is found on them is what hwloc and lscpu say of them.

The answers below were taken down from hwloc 2 and 3 and from util-linux's lscpu, which ship these
machines with their own tests, and not from what this package makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cputrain.machine.capture import read_capture
from cputrain.machine.cpulist import format_list, parse_list
from cputrain.machine.facts import read_machine

FOLDER = Path(__file__).resolve().parent.parent / "machines"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Groups = list[str]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What another tool says; CPU lists as the kernel writes them, "0-6:2" being 0, 2, 4 and 6."""

    allowed: str
    """CPUs that may be used; groups below are told for these only."""

    others: str = ""
    """CPUs that are there, but offline or not allowed."""

    cores: Groups
    sockets: Groups
    dies: Groups | None = None
    """None where the tool tells nothing of dies."""

    l1: dict[int | None, Groups] = field(default_factory=dict)
    """Size → who shares; the caches for data."""

    l2: dict[int | None, Groups] = field(default_factory=dict)
    l3: dict[int | None, Groups] = field(default_factory=dict)
    nodes: dict[int, str]
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node → bytes, and the unit to which they were rounded."""

    fast: str
    slow: str = ""
    vendor: str | None = None
    name: str | None = None


def runs(cpus: str, size: int) -> Groups:
    """Neighbours in groups of this size: runs("0-5", 2) is 0-1, 2-3 and 4-5."""
    numbers = parse_list(cpus)
    return [format_list(numbers[at : at + size]) for at in range(0, len(numbers), size)]


def paired(groups: Groups, distance: int) -> Groups:
    """Each group with the CPUs that are this much further: its second threads."""
    return [
        format_list([*parse_list(group), *(cpu + distance for cpu in parse_list(group))])
        for group in groups
    ]


ANSWERS = {
    "16amd64-8n2c-cpusets": Answer(
        allowed="0-3,5-6,12-15",
        others="4,7-11",
        cores=runs("0-3,5-6,12-15", 1),
        sockets=["0-1", "2-3", "5", "6", "12-13", "14-15"],
        l1={64 * KIB: runs("0-3,5-6,12-15", 1)},
        l2={MIB: runs("0-3,5-6,12-15", 1)},
        nodes={1: "2-3", 2: "5", 3: "6", 4: ""},
        memory=dict.fromkeys((1, 2, 3, 4), (8192 * MIB, MIB)),
        fast="0-3,5-6,12-15",
        name="Dual Core AMD Opteron(tm) Processor 865",
    ),
    "16em64t-4s2c2t-offlines": Answer(
        allowed="0-1,3-4,6-12,15",
        others="2,5,13-14",
        cores=["0,8", "4,12", "1,9", "3,11", "7,15", "6", "10"],
        sockets=["0,4,8,12", "1,9", "3,7,11,15", "6,10"],
        l1={16 * KIB: ["0,8", "4,12", "1,9", "3,11", "7,15", "6", "10"]},
        l2={MIB: ["0,8", "4,12", "1,9", "3,11", "7,15", "6", "10"]},
        l3={4 * MIB: ["0,4,8,12", "1,9", "3,7,11,15", "6,10"]},
        nodes={0: "0-1,3-4,6-12,15"},
        memory={0: (16 * GIB, GIB)},
        fast="0-1,3-4,6-12,15",
        name="Intel(R) Xeon(TM) CPU 2.60GHz",
    ),
    "20em64t-hybrid-1p6c2t+2ca4co1t": Answer(
        allowed="0-19",
        cores=[*runs("0-11", 2), *runs("12-19", 1)],
        sockets=["0-19"],
        l1={48 * KIB: runs("0-11", 2), 32 * KIB: runs("12-19", 1)},
        l2={1280 * KIB: runs("0-11", 2), 2 * MIB: runs("12-19", 4)},
        l3={24 * MIB: ["0-19"]},
        nodes={0: "0-19"},
        memory={0: (31 * GIB, GIB)},
        fast="0-11",
        slow="12-19",
        vendor="GenuineIntel",
        name="13th Gen Intel(R) Core(TM) i7-1370P",
    ),
    "2arm-2c": Answer(
        allowed="0-1",
        cores=["0", "1"],
        sockets=["0-1"],
        nodes={0: "0-1"},
        memory={0: (274 * MIB, MIB)},
        fast="0-1",
    ),
    "32amd64-4s2n4c-cgroup2": Answer(
        allowed="0-5",
        others="6-31",
        cores=runs("0-5", 1),
        sockets=["0-5"],
        l1={64 * KIB: runs("0-5", 1)},
        l2={512 * KIB: runs("0-5", 1)},
        l3={5118 * KIB: ["0-3", "4-5"]},
        nodes={0: "0-3", 1: "4-5", 2: "", 3: "", 4: "", 5: ""},
        memory={0: (17177686016, 1), **dict.fromkeys((1, 2, 3, 4, 5), (16 * GIB, 1))},
        fast="0-5",
        name="AMD Opteron(tm) Processor 6134",
    ),
    "fakecpuid1f-64intel64-2p4d2n2c2t": Answer(
        allowed="0-63",
        cores=runs("0-63", 2),
        sockets=runs("0-63", 16),
        dies=runs("0-63", 8),
        l1={32 * KIB: runs("0-63", 1)},
        l2={4 * MIB: runs("0-63", 2)},
        l3={16 * MIB: runs("0-63", 8)},
        nodes=dict(enumerate(runs("0-63", 4))),
        memory={
            **dict.fromkeys(range(16), (251 * MIB, MIB)),
            7: (227 * MIB, MIB),
            11: (187 * MIB, MIB),
            15: (250 * MIB, MIB),
        },
        fast="0-63",
        vendor="GenuineIntel",
        name="QEMU Virtual CPU version 2.5+",
    ),
    "arm-A510-A710-A715-X3": Answer(
        allowed="0-7",
        cores=runs("0-7", 1),
        sockets=["0-2", "3-6", "7"],
        l1={None: runs("0-7", 1)},
        l2={None: ["0", "1-2", "3", "4", "5", "6", "7"]},
        l3={None: ["0-7"]},
        nodes={},
        fast="3-7",
        slow="0-2",
        vendor="ARM",
    ),
    "x86_64-64cpu": Answer(
        allowed="0-63",
        cores=paired(runs("0-31", 1), 32),
        sockets=["0-60:4", "1-61:4", "2-62:4", "3-63:4"],
        l1={32 * KIB: paired(runs("0-31", 1), 32)},
        l2={256 * KIB: paired(runs("0-31", 1), 32)},
        l3={18 * MIB: ["0-60:4", "1-61:4", "2-62:4", "3-63:4"]},
        nodes={0: "0-62:2", 2: "1-61:4", 3: "3-63:4"},
        fast="0-63",
        vendor="GenuineIntel",
        name="Intel(R) Xeon(R) CPU X7550 @ 2.00GHz",
    ),
    "x86_64-epyc_7451": Answer(
        allowed="0-95",
        cores=paired(runs("0-47", 1), 48),
        sockets=["0-23,48-71", "24-47,72-95"],
        l1={32 * KIB: paired(runs("0-47", 1), 48)},
        l2={512 * KIB: paired(runs("0-47", 1), 48)},
        l3={8 * MIB: paired(runs("0-47", 3), 48)},
        nodes=dict(enumerate(paired(runs("0-47", 6), 48))),
        fast="0-95",
        vendor="AuthenticAMD",
        name="AMD EPYC 7451 24-Core Processor",
    ),
}


@cache
def document(name: str) -> dict[str, Any]:
    """What this package says of a captured machine."""
    return read_machine(read_capture(str(FOLDER / f"{name}.json"))).document()


def told(groups: Iterable[str]) -> list[str]:
    """Groups in one form and order."""
    return sorted(format_list(parse_list(group)) for group in groups)


def within(name: str, groups: Iterable[Iterable[int]]) -> list[str]:
    """Our groups, of the CPUs that the answer is about."""
    allowed = set(parse_list(ANSWERS[name].allowed))
    return sorted(format_list(cut) for group in groups if (cut := allowed & set(group)))


each_machine = pytest.mark.parametrize("name", ANSWERS)


def test_every_captured_machine_has_an_answer() -> None:
    """A capture that nothing is compared with proves nothing."""
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(ANSWERS)


@each_machine
def test_the_cpus_that_may_be_used_are_the_same(name: str) -> None:
    """Offline ones and those of other cpusets are told apart from them."""
    found, answer = document(name), ANSWERS[name]
    assert format_list(found["budget"]["cpus"]) == answer.allowed
    there = {*found["machine"]["online_cpus"], *found["machine"]["offline_cpus"]}
    assert format_list(there - set(found["budget"]["cpus"])) == answer.others


@each_machine
def test_cores_sockets_and_dies_are_the_same(name: str) -> None:
    """Which CPUs each has, not only how many there are."""
    found, answer = document(name)["machine"], ANSWERS[name]
    assert within(name, found["cores"]) == told(answer.cores)
    assert within(name, found["sockets"]) == told(answer.sockets)
    if answer.dies is not None:
        assert within(name, found["dies"]) == told(answer.dies)


@each_machine
@pytest.mark.parametrize("level", ["l1", "l2", "l3"])
def test_caches_are_the_same(name: str, level: str) -> None:
    """Who shares them, and their sizes."""
    answer: dict[int | None, Groups] = getattr(ANSWERS[name], level)
    found: dict[int | None, list[list[int]]] = {}
    for domain in document(name)["machine"][f"{level}_domains"]:
        found.setdefault(domain["size_bytes"], []).append(domain["cpus"])
    ours = {size: groups for size in found if (groups := within(name, found[size]))}
    assert ours == {size: told(groups) for size, groups in answer.items()}


@each_machine
def test_memory_nodes_are_the_same(name: str) -> None:
    """Ids, CPUs and sizes; the tools leave out nodes that a cpuset forbids."""
    answer = ANSWERS[name]
    nodes = {node["id"]: node for node in document(name)["machine"]["numa_nodes"]}
    for number, cpus in answer.nodes.items():
        assert within(name, [nodes[number]["cpus"]]) == told([cpus] if cpus else [])
    for number, (size, unit) in answer.memory.items():
        assert abs(nodes[number]["memory_bytes"] - size) < unit
    if answer.nodes and not answer.others:
        assert list(nodes) == list(answer.nodes)


@each_machine
def test_kinds_of_core_are_the_same(name: str) -> None:
    """Two kinds where there are two."""
    kinds = document(name)["machine"]["core_kinds"]
    found = {kind["kind"]: within(name, [kind["cpus"]]) for kind in kinds}
    answer = ANSWERS[name]
    assert found.pop("performance") == [answer.fast]
    assert found == ({"efficiency": [answer.slow]} if answer.slow else {})


@each_machine
def test_makers_and_names_are_the_same(name: str) -> None:
    """Where the tools give them."""
    found, answer = document(name)["machine"], ANSWERS[name]
    assert answer.vendor in (None, found["vendor"])
    assert answer.name in (None, found["model_name"])


def test_arm_kinds_are_named_by_their_parts() -> None:
    """All four of them."""
    named = document("arm-A510-A710-A715-X3")["machine"]["model_name"].split(" + ")
    assert sorted(named) == ["Cortex-A510", "Cortex-A710", "Cortex-A715", "Cortex-X3"]


def test_what_a_cpuset_says_is_told_with_its_place() -> None:
    """Version 2 of control groups, and the file system of before version 1."""
    limits = document("32amd64-4s2n4c-cgroup2")["limits"]
    assert limits["cpuset"] == [0, 1, 2, 3, 4, 5]
    assert limits["cpuset_from"].endswith("/cpuset.cpus.effective")
    limits = document("16amd64-8n2c-cpusets")["limits"]
    assert limits["cpuset_from"].startswith("/dev/cpuset/")


@each_machine
def test_no_name_of_a_group_is_left_in_a_capture(name: str) -> None:
    """Users and jobs stood in some of them."""
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert not any(word in text for word in ("/uid_", "/job_", "/step_", "/dummy", "vesubie"))
