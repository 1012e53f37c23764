"""A captured machine answers as the machine itself did; a damaged capture says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain.errors import SourceError
from cputrain.machine.capture import CaptureSource, RecordingSource, read_capture
from cputrain.machine.facts import read_machine
from cputrain.machine.source import RootSource
from tests.machine.trees import (
    CPU,
    Files,
    Tree,
    cache,
    cores,
    machine,
    node,
    sockets_of,
    unified,
)

if TYPE_CHECKING:
    from cputrain.machine.source import Source

SERVER: Files = {
    **machine(16, 2, 64),
    **sockets_of([(*range(8), *range(16, 24)), (*range(8, 16), *range(24, 32))]),
    **cache(1, 0, cores(16), "32K", "Data"),
    **cache(2, 2, cores(16), "1024K"),
    **cache(3, 3, [(*range(8), *range(16, 24)), (*range(8, 16), *range(24, 32))], "32M"),
    **node(0, (*range(8), *range(16, 24)), 32, "10 21"),
    **node(1, (*range(8, 16), *range(24, 32)), 32, "21 10"),
    "/proc/cpuinfo": "\n".join(
        f"processor : {cpu}\nvendor_id : AuthenticAMD\ncpu family : 23\nmodel name : An EPYC\n"
        f"cpu MHz : {2000 + cpu}.125\nflags : avx2 fma\n"
        for cpu in range(32)
    ),
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}


def captured(source: Source) -> dict[str, Any]:
    """What `cputrain info --capture` would write, through JSON and back."""
    recording = RecordingSource(source)
    read_machine(recording)
    document: dict[str, Any] = json.loads(json.dumps(recording.document()))
    return document


def replayed(source: Source) -> dict[str, Any]:
    """The document of the machine that its capture describes."""
    return read_machine(CaptureSource(captured(source), "a capture")).document()


def test_a_capture_gives_the_same_document_as_the_machine() -> None:
    """Every fact, every limit."""
    tree = Tree(SERVER)
    assert replayed(tree) == read_machine(tree).document()


def test_a_capture_of_a_sysroot_does_too(tmp_path: Path) -> None:
    """Read from disk rather than from memory."""
    source = RootSource(str(Tree(SERVER).save(tmp_path)))
    assert replayed(source) == read_machine(source).document()


def test_a_capture_of_this_machine_does_too() -> None:
    """Apart from what only a live machine tells, its libraries in private folders and its clock."""
    ours, theirs = read_machine(), replayed(RootSource())
    assert theirs["machine"]["cores"] == ours.document()["machine"]["cores"]
    assert theirs["budget"]["physical_cores"] == ours.budget.physical_cores
    assert theirs["limits"]["affinity"] == list(ours.limits.affinity or ())


def test_only_the_names_of_groups_differ() -> None:
    """They are replaced, and the limits they impose stay."""
    tree = Tree(
        SERVER,
        unified("/alice/job_77", {"alice/cpu.max": "400000 100000", "alice/memory.max": "max"}),
    )
    ours, theirs = read_machine(tree).document(), replayed(tree)
    assert theirs["limits"].pop("quota_from") == "/sys/fs/cgroup/group1/cpu.max"
    assert ours["limits"].pop("quota_from") == "/sys/fs/cgroup/alice/cpu.max"
    assert theirs["budget"].pop("reasons")[-1].endswith("(/sys/fs/cgroup/group1/cpu.max)")
    assert len(ours["budget"].pop("reasons")) == 2
    assert theirs == ours


def test_second_threads_count_although_none_of_their_files_was_read() -> None:
    """Old kernels list CPUs only as folders."""
    files = {path: text for path, text in SERVER.items() if path not in (f"{CPU}/online",)}
    files.pop(f"{CPU}/present")
    assert replayed(Tree(files)) == read_machine(Tree(files)).document()


def test_the_environment_that_grants_cpus_is_kept() -> None:
    """And nothing else of it."""
    tree = Tree(SERVER, environment={"SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "77", "USER": "a"})
    assert captured(tree)["environment"] == {"SLURM_CPUS_PER_TASK": "4"}
    assert replayed(tree)["budget"]["physical_cores"] == 4


def test_a_capture_of_384_cpus_is_small() -> None:
    """Equal files of many CPUs are written once."""
    assert len(json.dumps(captured(Tree(machine())))) < 64 << 10


def test_binary_files_survive() -> None:
    """The firmware's tables are no text."""
    document = captured(Tree(SERVER))
    document["binary"]["/some/file"] = "/wAB"
    assert CaptureSource(document, "here").raw("/some/file") == b"\xff\x00\x01"


WHOLE = captured(Tree(machine(2)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, len(json.dumps(WHOLE)) - 1))
def test_a_capture_that_was_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    """Anywhere."""
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(WHOLE)[:length])
    with pytest.raises(SourceError):
        read_capture(str(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "must be a readable capture"),
        ("{", "must be a readable capture"),
        ("[]", "must be a capture of a machine; found kind 'list'"),
        ("{}", "must be a capture of a machine; found kind None"),
        ('{"kind": "a plan"}', "must be a capture of a machine; found kind 'a plan'"),
        ('{"kind": "cputrain capture", "schema_version": 99}', "schema_version 1; found 99"),
        ('{"kind": "cputrain capture", "schema_version": 1}', "must be a capture written by"),
    ],
)
def test_what_is_no_capture_is_refused_in_four_parts(
    tmp_path: Path, content: str, says: str
) -> None:
    """The file, the rule, what was found, and what to do."""
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(SourceError) as caught:
        read_capture(str(path))
    error = caught.value
    assert error.exit_code == 2
    assert error.parameter == str(path)
    assert all((error.rule, error.found, error.do))
    assert says in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", []),
        ("files", {"/proc/stat": 3}),
        ("binary", {"/x": "not base64!"}),
        ("binary", {"/x": 3}),
        ("per_cpu", {"online": {"1": "zero"}}),
        ("per_cpu", {"online": ["1"]}),
        ("links", 3),
        ("environment", None),
        ("folders", {"/x": 3}),
    ],
)
def test_a_capture_with_a_fault_inside_is_refused(key: str, value: object) -> None:
    """Somebody may have edited it."""
    with pytest.raises(SourceError, match="Capture the machine again"):
        CaptureSource({**WHOLE, key: value}, "edited.json")


def test_a_capture_that_is_absent_says_so(tmp_path: Path) -> None:
    """With the system's own words."""
    with pytest.raises(SourceError, match="No such file"):
        read_capture(str(tmp_path / "nowhere.json"))
