"""Nothing that names a person, a host, a job or a single device survives in a capture."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.machine.capture import CaptureSource, RecordingSource
from cputrain.machine.facts import read_machine
from tests.machine.trees import Files, Tree, groups, machine, mountinfo, unified

SECRET = "zq7secret"
"""Stands for whatever must not be told; no file of Linux's has it."""

ELF = b"\x7fELF\x02\x01\x01 a whole library"


def capture(*parts: Files, environment: dict[str, str] | None = None) -> str:
    """A capture as it would be written."""
    recording = RecordingSource(Tree(machine(2), *parts, environment=environment))
    read_machine(recording)
    for path in parts[0] if parts else ():
        recording.raw(path)  # whoever reads a file next year, it stays secret
        recording.names(path.rpartition("/")[0])
    return json.dumps(recording.document())


def test_control_groups_lose_their_names_and_keep_their_shape() -> None:
    """Users, jobs and containers are in them."""
    files = {
        f"user-{SECRET}.slice/job_{SECRET}/cpu.max": "100000 100000",
        f"user-{SECRET}.slice/memory.max": "1073741824",
        f"user-{SECRET}.slice/sibling_{SECRET}/cpu.max": "max",
    }
    text = capture(unified(f"/user-{SECRET}.slice/job_{SECRET}", files))
    assert SECRET not in text
    found = read_machine(CaptureSource(json.loads(text), "here"))
    assert found.limits.quota_from == "/sys/fs/cgroup/group1/group2/cpu.max"
    assert found.limits.memory_from == "/sys/fs/cgroup/group1/memory.max"


def test_a_group_with_colons_in_its_name_is_replaced_as_a_whole() -> None:
    """Kubernetes writes its pods so."""
    group = f"kubepods-pod{SECRET}.slice:cri-containerd:{SECRET}"
    text = capture(unified(f"/system.slice/{group}", {f"system.slice/{group}/cpu.max": "100000"}))
    assert SECRET not in text
    assert read_machine(CaptureSource(json.loads(text), "here")).limits.quota_cpus == 1.0


def test_the_part_of_the_tree_that_is_mounted_is_renamed_too() -> None:
    """A container's name stands in the mount's root, with the process at another place."""
    files = {
        **mountinfo((f"/docker/{SECRET}", "/sys/fs/cgroup/cpu", "cgroup", "cpu")),
        **groups(cpu="/"),
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    text = capture(files)
    assert SECRET not in text
    assert read_machine(CaptureSource(json.loads(text), "here")).limits.quota_cpus == 2.0


def test_other_mounts_and_scripts_named_in_options_are_left_out() -> None:
    """A disk's name, a home, an agent."""
    files: Files = {
        "/proc/mounts": f"//{SECRET}/share /home/{SECRET} cifs rw 0 0\n"
        f"cgroup /cg cgroup rw,cpu,release_agent=/opt/{SECRET}/agent 0 0\n",
        "/proc/self/cgroup": "1:cpu:/\n",
        "/cg/cpu.cfs_quota_us": "-1\n",
    }
    text = capture(files)
    assert SECRET not in text
    assert "/cg/cpu.cfs_quota_us" in text


def test_a_process_shows_nothing_but_its_mask() -> None:
    """Not its name, nor its parent's."""
    status = f"Name:\t{SECRET}\nUid:\t1000\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n"
    text = capture({"/proc/self/status": status})
    assert SECRET not in text
    assert "Uid" not in text
    assert "Cpus_allowed_list" in text


def test_cpuinfo_keeps_what_is_read() -> None:
    """Arm boards and s390 have serial numbers in it."""
    lines = (
        f"processor : 0\nmodel name : A CPU\nSerial : {SECRET}\nHardware : {SECRET}\n\n"
        f"processor 1: version = FF, identification = {SECRET}, machine = 3931\n"
    )
    text = capture({"/proc/cpuinfo": lines})
    assert SECRET not in text
    assert "A CPU" in text
    assert "machine = 3931" in text


def test_the_kernels_command_line_keeps_what_it_says_of_nodes() -> None:
    """It may hold keys, hosts and disks."""
    line = f"root=UUID={SECRET} ip=::::{SECRET} numa=fake=2U luks={SECRET}\n"
    text = capture({"/proc/cmdline": line})
    assert SECRET not in text
    assert "numa=fake=2U" in text


def test_gpus_keep_their_model_and_lose_their_identity() -> None:
    """UUID, serial number, the driver's build host."""
    text = capture(
        {
            "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA H200\n"
            f"GPU UUID: \t GPU-{SECRET}\nVideo BIOS: \t 96\nDevice Minor: \t 0\n",
            "/proc/driver/nvidia/gpus/0000:01:00.0/numa_status": f"Node: 1\nx: {SECRET}\n",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 304\n"
            f"unique_id {SECRET}\nvendor_id 4098\n",
        }
    )
    assert SECRET not in text
    assert "NVIDIA H200" in text
    assert "simd_count" in text


def test_homes_are_left_out_wherever_they_are_named() -> None:
    """Libraries in somebody's folder, and lists that name it."""
    home = f"/home/{SECRET}"
    text = capture(
        {
            f"{home}/conda/lib/libtcmalloc.so.4": ELF,
            f"/data/{SECRET}/lib/libjemalloc.so.2": ELF,
            "/etc/ld.so.conf.d/private.conf": f"{home}/lib\n/usr/local/lib\n",
            "/etc/OpenCL/vendors/mine.icd": f"{home}/lib/libOpenCL-mine.so\n",
        },
        environment={
            "CONDA_PREFIX": f"{home}/conda",
            "LD_LIBRARY_PATH": f"{home}/lib",
            "USER": SECRET,
            "SLURM_JOB_USER": SECRET,
        },
    )
    assert SECRET not in text
    assert "a whole library" not in text


def test_a_link_into_a_home_is_left_out() -> None:
    """Others are kept: they lead to devices and libraries."""
    links = {
        "/usr/lib/libOpenCL.so.1": f"/home/{SECRET}/pocl/libOpenCL.so.1",
        "/usr/lib64/libOpenCL.so.1": "libOpenCL.so.1.0.0",
        f"/home/{SECRET}/lib": "/usr/lib",
    }
    recording = RecordingSource(Tree(machine(1), links=links))
    for path in links:
        recording.link(path)
    kept = recording.document()["links"]
    assert kept == {"/usr/lib64/libOpenCL.so.1": "libOpenCL.so.1.0.0"}


def test_devices_that_name_people_are_left_out() -> None:
    """What stands in /dev is kept where it is a driver's."""
    text = capture({f"/dev/{SECRET}": "", "/dev/nvidia0": "", "/dev/kfd": ""})
    assert SECRET not in text


NAMES = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="/:\n\\ ", categories=("L", "N", "P")),
    min_size=1,
    max_size=12,
).map(lambda name: f"{name}{SECRET}")


@settings(max_examples=40)
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_whatever_a_group_is_called_its_name_does_not_survive(names: list[str]) -> None:
    """Nor does its quota change."""
    path = "/".join(names)
    text = capture(unified(f"/{path}", {f"{path}/cpu.max": "200000 100000"}))
    assert SECRET not in text
    assert read_machine(CaptureSource(json.loads(text), "here")).limits.quota_cpus == 2.0
