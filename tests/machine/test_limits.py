"""What containers, schedulers and masks leave: however they say it, the budget tells the truth."""

from __future__ import annotations

import pytest

from cputrain.machine.facts import Machine, read_machine
from tests.machine.trees import (
    UNLIMITED_V1,
    Files,
    Tree,
    groups,
    machine,
    mountinfo,
    online,
    threads_of,
    unified,
)

GIB = 1 << 30


def read(*parts: Files, environment: dict[str, str] | None = None) -> Machine:
    """The machine, as a launch reads it."""
    return read_machine(Tree(*parts, environment=environment), detail=False)


def status(allowed: str) -> Files:
    """The affinity mask of the process."""
    return {"/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed}\n"}


def v1(controller: str, path: str, root: str, files: dict[str, str]) -> Files:
    """One controller of version 1 at its usual place, with files named relative to the mount."""
    point = f"/sys/fs/cgroup/{controller}"
    return {
        **mountinfo((root, point, "cgroup", controller)),
        **groups(**{controller.replace(",", "_"): path}),
        **{f"{point}/{name}": content + "\n" for name, content in files.items()},
    }


def test_nothing_restricts_a_machine_without_groups() -> None:
    """No files, no limits; the budget is the machine."""
    found = read(machine())
    assert found.limits.quota_cpus is None
    assert found.limits.cpuset is None
    assert found.budget.physical_cores == 192
    assert len(found.budget.cpus) == 384
    assert found.budget.reasons == ("the machine has 192 physical cores (384 logical CPUs) online",)


def test_a_quota_of_eight_on_384_cpus_feeds_eight_cores() -> None:
    """A quota counts CPU seconds: eight cores' worth, and every CPU may still be used."""
    found = read(machine(), unified("/box", {"box/cpu.max": "800000 100000"}))
    assert found.limits.quota_cpus == 8.0
    assert found.budget.physical_cores == 8
    assert len(found.budget.cpus) == 384
    assert "/sys/fs/cgroup/box/cpu.max" in found.budget.reasons[-1]


def test_a_namespace_hides_the_path_and_the_quota_stands_at_the_mount() -> None:
    """What a container of today sees: its own group as the root."""
    found = read(machine(), unified("/", {"cpu.max": "800000 100000"}))
    assert found.budget.physical_cores == 8


@pytest.mark.parametrize(
    ("line", "quota", "cores"),
    [
        ("765000 100000", 7.65, 7),
        ("50000 100000", 0.5, 1),
        ("1000 1000000", 0.001, 1),
        ("25000 10000", 2.5, 2),
        ("150000", 1.5, 1),
        ("max 100000", None, 192),
        ("max", None, 192),
        ("", None, 192),
        ("100000 0", None, 192),
        ("-1 100000", None, 192),
        ("many few", None, 192),
        ("99999999 100000", 999.99999, 192),
    ],
)
def test_a_quota_is_rounded_down_but_never_to_nothing(
    line: str, quota: float | None, cores: int
) -> None:
    """Fractions, "max", and whatever else may stand in cpu.max."""
    found = read(machine(), unified("/box", {"box/cpu.max": line}))
    assert found.limits.quota_cpus == quota
    assert found.budget.physical_cores == cores


def test_the_tightest_group_up_the_tree_counts() -> None:
    """A parent may be tighter than its child, and says so."""
    files = {
        "cpu.max": "max 100000",
        "a/cpu.max": "400000 100000",
        "a/b/cpu.max": "200000 100000",
        "a/b/c/cpu.max": "1600000 100000",
    }
    found = read(machine(), unified("/a/b/c", files))
    assert found.limits.quota_cpus == 2.0
    assert found.limits.quota_from == "/sys/fs/cgroup/a/b/cpu.max"


def test_a_hundred_levels_are_read_to_the_top() -> None:
    """Depth does not matter."""
    path = "/".join(f"level{index}" for index in range(100))
    files = {f"{path}/cpu.max": "max 100000", "level0/cpu.max": "300000 100000"}
    assert read(machine(), unified(f"/{path}", files)).budget.physical_cores == 3


def test_a_group_that_has_gone_is_looked_for_in_its_parents() -> None:
    """The path may name a folder that this container does not see."""
    found = read(machine(), unified("/gone/away", {"cpu.max": "500000 100000"}))
    assert found.budget.physical_cores == 5


def test_a_path_with_dots_is_that_of_a_namespace_further_in() -> None:
    """The kernel writes "/.." for what lies above a namespace's root."""
    found = read(machine(), unified("/../../box", {"box/cpu.max": "600000 100000"}))
    assert found.budget.physical_cores == 6


def test_a_version_1_quota_is_found_where_the_mount_shows_a_part_of_the_tree() -> None:
    """/proc/self/cgroup has the host's path, mountinfo's root says which part is mounted."""
    files = {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"}
    found = read(machine(), v1("cpu,cpuacct", "/docker/abc", "/docker/abc", files))
    assert found.budget.physical_cores == 4
    assert found.limits.quota_from == "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"


def test_a_version_1_quota_below_the_part_is_found_too() -> None:
    """A group within the container's own part of the tree."""
    files = {
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "job/cpu.cfs_quota_us": "300000",
        "job/cpu.cfs_period_us": "100000",
    }
    found = read(machine(), v1("cpu", "/docker/abc/job", "/docker/abc", files))
    assert found.budget.physical_cores == 3


def test_a_version_1_quota_of_minus_one_is_none() -> None:
    """That is how version 1 says "no quota"."""
    files = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}
    assert read(machine(), v1("cpu", "/", "/", files)).limits.quota_cpus is None


def test_a_version_1_cpuset_leaves_its_cpus() -> None:
    """Two threads of four cores are four cores."""
    files = {"job/cpuset.cpus": "4-7,196-199"}
    found = read(machine(), v1("cpuset", "/job", "/", files))
    assert found.limits.cpuset == (4, 5, 6, 7, 196, 197, 198, 199)
    assert found.budget.physical_cores == 4


def test_an_empty_version_1_cpuset_inherits_its_parents() -> None:
    """A group whose CPUs nobody has set yet."""
    files = {"cpuset.cpus": "0-383", "a/cpuset.cpus": "8-15", "a/b/cpuset.cpus": ""}
    found = read(machine(), v1("cpuset", "/a/b", "/", files))
    assert found.limits.cpuset == tuple(range(8, 16))
    assert found.limits.cpuset_from == "/sys/fs/cgroup/cpuset/a/cpuset.cpus"


def test_a_cpuset_may_leave_out_cpu_0() -> None:
    """Nothing is special about the first CPU."""
    found = read(machine(), unified("/box", {"box/cpuset.cpus.effective": "100-103"}))
    assert found.budget.cpus == (100, 101, 102, 103)
    assert found.budget.physical_cores == 4


def test_a_cpuset_of_second_threads_alone_still_counts_cores() -> None:
    """Each of these CPUs is another core's second thread."""
    found = read(machine(), unified("/box", {"box/cpuset.cpus.effective": "192-195"}))
    assert found.budget.physical_cores == 4


def test_a_cpuset_names_cpus_that_are_not_there() -> None:
    """Only what is online counts; a set of nothing but strangers is set aside."""
    files = {"box/cpuset.cpus.effective": "382-390"}
    assert read(machine(), unified("/box", files)).budget.cpus == (382, 383)
    files = {"box/cpuset.cpus.effective": "1000-1003"}
    assert read(machine(), unified("/box", files)).budget.physical_cores == 192


def test_a_mask_a_cpuset_and_a_quota_are_intersected() -> None:
    """Each narrows what the others left, and each is given as a reason."""
    found = read(
        machine(),
        status("0-15"),
        unified("/box", {"box/cpuset.cpus.effective": "8-31", "box/cpu.max": "350000 100000"}),
    )
    assert found.budget.cpus == tuple(range(8, 16))
    assert found.budget.physical_cores == 3
    assert len(found.budget.reasons) == 4


def test_a_mask_in_hexadecimal_is_read_where_there_is_no_list() -> None:
    """Kernels before 2.6.26 had only this."""
    allowed: Files = {"/proc/self/status": "Cpus_allowed:\t00000000,000000f0\n"}
    assert read(machine(), allowed).limits.affinity == (4, 5, 6, 7)


def test_the_old_cpuset_file_system_is_read() -> None:
    """Its files have no prefix, and /proc/self/cpuset names the group."""
    files: Files = {
        "/proc/mounts": "none /dev/cpuset cpuset rw 0 0\n",
        "/proc/self/cpuset": "/job\n",
        "/dev/cpuset/job/cpus": "1-6\n",
    }
    assert read(machine(), files).limits.cpuset == (1, 2, 3, 4, 5, 6)


def test_groups_mounted_at_odd_places_are_found() -> None:
    """The mount list says where, even with a space in the name."""
    files: Files = {
        **mountinfo(("/", "/mnt/my\\040groups", "cgroup2", "")),
        **groups(unified="/box"),
        "/mnt/my groups/box/cpu.max": "700000 100000\n",
    }
    assert read(machine(), files).budget.physical_cores == 7


def test_both_versions_at_once_are_both_asked() -> None:
    """systemd's hybrid: version 1 controllers, and version 2 for the rest."""
    files: Files = {
        **mountinfo(
            ("/", "/sys/fs/cgroup/unified", "cgroup2", ""),
            ("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"),
            ("/", "/sys/fs/cgroup/cpuset", "cgroup", "cpuset"),
            ("/", "/sys/fs/cgroup/memory", "cgroup", "memory"),
            ("/", "/sys/fs/cgroup/systemd", "cgroup", "xattr,name=systemd"),
        ),
        **groups(cpu_cpuacct="/box", cpuset="/box", memory="/box", unified="/other"),
        "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "900000\n",
        "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpuset/box/cpuset.cpus": "0-31\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{8 * GIB}\n",
        "/sys/fs/cgroup/unified/other/cgroup.procs": "1\n",
    }
    found = read(machine(), files)
    assert found.budget.physical_cores == 9
    assert found.budget.cpus == tuple(range(32))
    assert found.budget.memory_bytes == 8 * GIB


def test_a_version_1_memory_limit_takes_the_tightest_of_its_parents() -> None:
    """The number that stands for "unlimited" is none."""
    files = {
        "memory.limit_in_bytes": str(UNLIMITED_V1),
        "a/memory.limit_in_bytes": str(16 * GIB),
        "a/b/memory.limit_in_bytes": str(UNLIMITED_V1),
    }
    found = read(machine(), v1("memory", "/a/b", "/", files))
    assert found.limits.memory_bytes == 16 * GIB
    assert found.limits.memory_from == "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"


def test_version_1_without_a_memory_limit_leaves_the_machines() -> None:
    """768 GiB, not eight exabytes."""
    found = read(machine(), v1("memory", "/", "/", {"memory.limit_in_bytes": str(UNLIMITED_V1)}))
    assert found.limits.memory_bytes is None
    assert found.budget.memory_bytes == 768 * GIB


def test_a_version_2_memory_limit_is_the_tightest_of_max_and_high() -> None:
    """Above "high" a process is slowed down until it is of no use."""
    files = {
        "a/memory.max": str(64 * GIB),
        "a/b/memory.max": "max",
        "a/b/memory.high": str(48 * GIB),
    }
    found = read(machine(), unified("/a/b", files))
    assert found.budget.memory_bytes == 48 * GIB
    assert found.budget.reasons[-1].startswith("memory is limited to 48 GiB")


def test_a_memory_limit_beyond_the_machine_changes_nothing() -> None:
    """A limit is no promise."""
    found = read(machine(), unified("/a", {"a/memory.max": str(4096 * GIB)}))
    assert found.budget.memory_bytes == 768 * GIB


def test_slurm_grants_fewer_cpus_than_the_mask_shows() -> None:
    """Without a mask, its number is all there is."""
    found = read(machine(), environment={"SLURM_CPUS_PER_TASK": "12", "SLURM_CPUS_ON_NODE": "48"})
    assert found.budget.physical_cores == 12
    assert found.limits.slurm_from == "SLURM_CPUS_PER_TASK"


def test_slurm_with_a_mask_is_bounded_by_both() -> None:
    """Eight hardware threads of four cores stay four cores."""
    found = read(machine(), status("0-3,192-195"), environment={"SLURM_CPUS_PER_TASK": "8"})
    assert found.budget.physical_cores == 4


@pytest.mark.parametrize("value", ["", "0", "-3", "2(x3)", "many", "²"])
def test_a_strange_word_from_slurm_is_no_grant(value: str) -> None:
    """Only whole numbers count."""
    assert read(machine(), environment={"SLURM_CPUS_PER_TASK": value}).limits.slurm_cpus is None


@pytest.mark.parametrize(
    "garbage", ["\0\xff\xfe", "²", "0-", "5-2", "-1", "1e9", "0-4294967295", "max max"]
)
def test_garbage_in_every_file_leaves_the_machine_whole(garbage: str) -> None:
    """Whatever the files hold, nothing is raised and nothing is invented."""
    names = ("cpu.max", "cpuset.cpus.effective", "memory.max", "memory.high")
    found = read(
        machine(8),
        unified("/box", {f"box/{name}": garbage for name in names}),
        {"/proc/self/status": f"Cpus_allowed_list:\t{garbage}\n"},
    )
    assert found.budget.physical_cores == 8
    assert found.limits.memory_bytes is None


@pytest.mark.parametrize("name", ["/proc/self/mountinfo", "/proc/self/cgroup", "/proc/mounts"])
def test_lists_of_groups_that_are_cut_short_are_survived(name: str) -> None:
    """Half a line is no line."""
    for content in ("36 25 0:3", "4:cpu", "cgroup2", " - cgroup2 x rw", "0::relative\n", "::::\n"):
        assert read(machine(2), {name: content}).budget.physical_cores == 2


def test_an_offline_cpu_is_nobodys() -> None:
    """A mask may still name it."""
    files = {**online(range(3), range(4)), **threads_of([(0, 2), (1, 3)])}
    found = read(files, status("0-3"))
    assert found.budget.cpus == (0, 1, 2)
    assert found.topology.offline == (3,)
    assert found.budget.physical_cores == 2
