"""Cores, dies, sockets and caches of machines whose trees have gaps, quirks and plain faults."""

from __future__ import annotations

from cputrain.machine.cpulist import format_list
from cputrain.machine.topology import Topology, read_topology
from tests.machine.trees import (
    CPU,
    Files,
    Tree,
    cache,
    cores,
    mask,
    online,
    sockets_of,
    threads_of,
)


def read(*parts: Files) -> Topology:
    """The topology, caches too."""
    return read_topology(Tree(*parts))


def spans(groups: tuple[tuple[int, ...], ...]) -> list[str]:
    """Groups of CPUs as lists."""
    return [format_list(group) for group in groups]


def test_masks_say_who_shares_a_core_and_a_socket() -> None:
    """CPU n need not be core n, and sockets may alternate."""
    found = read(online(range(8)), threads_of(cores(4)), sockets_of([(0, 2, 4, 6), (1, 3, 5, 7)]))
    assert spans(found.cores) == ["0,4", "1,5", "2,6", "3,7"]
    assert spans(found.sockets) == ["0,2,4,6", "1,3,5,7"]
    assert found.dies == ()


def test_lists_do_where_there_are_no_masks() -> None:
    """Either form is enough."""
    files: Files = {f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-1\n" for cpu in (0, 1)}
    assert spans(read(online(range(2)), files).cores) == ["0-1"]


def test_newer_names_of_masks_go_first() -> None:
    """core_cpus and package_cpus, since Linux 5.3."""
    found = read(online(range(4)), threads_of([(0, 1), (2, 3)], ("core_cpus",)))
    assert spans(found.cores) == ["0-1", "2-3"]


def test_threads_that_are_offline_leave_their_core() -> None:
    """Masks may still name them; their folders may be half empty."""
    files = {**online((0, 1, 2, 5), range(8)), **threads_of(cores(4)), **sockets_of([range(8)])}
    found = read(files, cache(2, 2, cores(4), "1024K"))
    assert spans(found.cores) == ["0", "1,5", "2"]
    assert found.offline == (3, 4, 6, 7)
    assert spans(found.sockets) == ["0-2,5"]
    assert [domain.cpus for domain in found.l2_domains] == [(0,), (1, 5), (2,)]


def test_possible_cpus_are_not_offline_ones() -> None:
    """A virtual machine may announce 4096 slots that nothing is plugged into."""
    found = read(online(range(2)), {f"{CPU}/possible": "0-4095\n"})
    assert found.offline == ()


def test_old_kernels_tell_only_in_each_cpus_own_file() -> None:
    """Before 2.6.26; the boot CPU has no such file."""
    files: Files = {
        **threads_of([(0,), (1,), (2,)]),
        f"{CPU}/cpu1/online": "0\n",
        f"{CPU}/cpu2/online": "1\n",
        f"{CPU}/cpufreq/policy": "",
        f"{CPU}/cpuidle/driver": "",
    }
    found = read(files)
    assert found.online == (0, 2)
    assert found.offline == (1,)


def test_cpuinfo_counts_where_sysfs_is_missing() -> None:
    """Sandboxes often have no more than that; each CPU is then a core."""
    found = read({"/proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n"})
    assert spans(found.cores) == ["0", "1"]
    assert spans(found.sockets) == ["0-1"]


def test_s390_counts_processors_in_another_way() -> None:
    """The number stands in the key there."""
    lines = "# processors : 2\nprocessor 0: version = FF\nprocessor 1: version = FF\n"
    assert read({"/proc/cpuinfo": lines}).online == (0, 1)


def test_without_topology_files_every_cpu_is_a_core_of_one_socket() -> None:
    """Some virtual machines and old kernels."""
    found = read(online(range(3)))
    assert spans(found.cores) == ["0", "1", "2"]
    assert spans(found.sockets) == ["0-2"]


def test_package_ids_do_where_package_masks_are_missing() -> None:
    """Sparse ids are fine."""
    files: Files = {
        f"{CPU}/cpu{cpu}/topology/physical_package_id": f"{cpu // 2 * 7}\n" for cpu in range(4)
    }
    assert spans(read(online(range(4)), files).sockets) == ["0-1", "2-3"]


def test_a_package_id_of_minus_one_means_nothing_where_masks_are_there() -> None:
    """POWER and Arm write it; the masks still tell."""
    files = sockets_of([(0, 1), (2, 3)])
    files.update({f"{CPU}/cpu{cpu}/topology/physical_package_id": "-1\n" for cpu in range(4)})
    assert spans(read(online(range(4)), files).sockets) == ["0-1", "2-3"]


def test_core_ids_that_repeat_do_not_join_cores() -> None:
    """On s390 and on Arm's clusters they do repeat."""
    files = threads_of([(0,), (1,), (2,)])
    files.update({f"{CPU}/cpu{cpu}/topology/core_id": "1\n" for cpu in range(3)})
    assert spans(read(online(range(3)), files).cores) == ["0", "1", "2"]


def modules(vendor: str, family: int) -> Topology:
    """Two CPUs shown as siblings that have core ids of their own."""
    files = threads_of([(0, 1), (2, 3)])
    files.update({f"{CPU}/cpu{cpu}/topology/core_id": f"{cpu}\n" for cpu in range(4)})
    files["/proc/cpuinfo"] = f"processor : 0\nvendor_id : {vendor}\ncpu family : {family}\n"
    return read(online(range(4)), files)


def test_bulldozers_modules_have_two_cores() -> None:
    """Siblings share a floating-point unit there, and are cores of their own all the same."""
    assert spans(modules("AuthenticAMD", 21).cores) == ["0", "1", "2", "3"]


def test_siblings_with_different_core_ids_are_threads_elsewhere() -> None:
    """A firmware's numbering proves nothing."""
    assert spans(modules("GenuineIntel", 6).cores) == ["0-1", "2-3"]
    assert spans(modules("AuthenticAMD", 25).cores) == ["0-1", "2-3"]


def test_dies_are_told_apart_where_they_are_more_than_single_cpus() -> None:
    """Other architectures write a mask of one CPU, or an id of -1, for "not known"."""

    def dies(groups: list[tuple[int, ...]], number: int) -> tuple[tuple[int, ...], ...]:
        files = threads_of(groups, ("die_cpus",))
        files.update({f"{CPU}/cpu{cpu}/topology/die_id": f"{number}\n" for cpu in range(4)})
        return read(online(range(4)), files).dies

    assert spans(dies([(0, 1), (2, 3)], 0)) == ["0-1", "2-3"]
    assert dies([(0,), (1,), (2,), (3,)], 0) == ()
    assert dies([(0, 1), (2, 3)], -1) == ()


def test_caches_have_their_sharers_and_sizes_and_instructions_are_left_out() -> None:
    """Sizes are written in three units."""
    found = read(
        online(range(4)),
        threads_of([(0, 1), (2, 3)]),
        cache(1, 0, [(0, 1), (2, 3)], "48K", "Data"),
        cache(1, 1, [(0, 1), (2, 3)], "32K", "Instruction"),
        cache(2, 2, [(0, 1), (2, 3)], "2M"),
        cache(3, 3, [range(4)], "36864 K"),
        {f"{CPU}/cpu0/cache/uevent": "", f"{CPU}/cpu0/cache/power/control": "auto\n"},
    )
    assert [(d.cpus, d.size_bytes) for d in found.l1_domains] == [((0, 1), 49152), ((2, 3), 49152)]
    assert [d.size_bytes for d in found.l2_domains] == [2 << 20, 2 << 20]
    assert [(d.cpus, d.size_bytes) for d in found.l3_domains] == [((0, 1, 2, 3), 36 << 20)]


def test_a_cache_of_unknown_size_is_still_a_domain() -> None:
    """On many Arm machines the device tree leaves it out; some firmware writes nought."""
    for size in ("", "0K", "large"):
        found = read(online(range(2)), cache(2, 2, [(0, 1)], size))
        assert [(d.cpus, d.size_bytes) for d in found.l2_domains] == [((0, 1), None)]


def test_threads_of_a_core_may_have_first_caches_of_their_own() -> None:
    """So some virtual machines say."""
    found = read(
        online(range(2)),
        threads_of([(0, 1)]),
        cache(1, 0, [(0,), (1,)], "32K", "Data"),
        cache(2, 1, [(0, 1)], "4M"),
    )
    assert [d.cpus for d in found.l1_domains] == [(0,), (1,)]
    assert [d.cpus for d in found.l2_domains] == [(0, 1)]


def test_cores_may_differ_in_the_caches_they_tell() -> None:
    """CPU 0 names no second cache, CPU 2 names nothing, and CPU 3 names one for both."""
    found = read(
        online(range(4)),
        cache(1, 0, [(0,), (1,), (3,)], "32K", "Data"),
        {path: text for path, text in cache(2, 2, [(2, 3)], "4096K").items() if "cpu3" in path},
    )
    assert [d.cpus for d in found.l1_domains] == [(0,), (1,), (3,)]
    assert [d.cpus for d in found.l2_domains] == [(2, 3)]


def test_a_core_whose_first_thread_tells_nothing_is_asked_for_its_second() -> None:
    """A CPU that came back online may have lost its cache folder."""
    files = {path: text for path, text in cache(2, 0, [(0, 1)], "1M").items() if "cpu1" in path}
    found = read(online(range(2)), threads_of([(0, 1)]), files)
    assert [d.cpus for d in found.l2_domains] == [(0, 1)]


def test_an_empty_map_of_sharers_means_the_core() -> None:
    """Itanium leaves those of some caches empty."""
    files = cache(3, 3, [(0, 1)], "6144K")
    files.update({path: "00000000\n" for path in files if path.endswith("map")})
    found = read(online(range(2)), threads_of([(0, 1)]), files)
    assert [d.cpus for d in found.l3_domains] == [(0, 1)]


def test_sparc_keeps_its_caches_beside_the_topology() -> None:
    """In bytes, and without a word about sharing."""
    files: Files = {}
    for cpu in (6, 7):
        files[f"{CPU}/cpu{cpu}/l1_dcache_size"] = "16384\n"
        files[f"{CPU}/cpu{cpu}/l2_cache_size"] = "4194304\n"
    found = read(online((6, 7)), files)
    assert [(d.cpus, d.size_bytes) for d in found.l1_domains] == [((6,), 16384), ((7,), 16384)]
    assert [(d.cpus, d.size_bytes) for d in found.l2_domains] == [((6,), 4 << 20), ((7,), 4 << 20)]


def test_caches_are_left_out_for_a_launch() -> None:
    """They are most of the files."""
    tree = Tree(online(range(2)), cache(2, 2, [(0, 1)], "1M"))
    assert read_topology(tree, caches=False).l2_domains == ()


def test_two_thousand_cpus_with_gaps_are_read() -> None:
    """Long masks, sparse numbers."""
    numbers = [(8 * core, 8 * core + 1) for core in range(256)]
    cpus = [cpu for core in numbers for cpu in core]
    found = read(online(cpus), threads_of(numbers), sockets_of([cpus]))
    assert len(found.cores) == 256
    assert found.cores[-1] == (2040, 2041)
    assert found.sockets == (tuple(cpus),)


def test_masks_that_disagree_put_no_cpu_in_two_cores() -> None:
    """A buggy firmware's siblings: whoever comes first keeps them."""
    files: Files = {
        f"{CPU}/cpu0/topology/thread_siblings": mask((0, 1)),
        f"{CPU}/cpu1/topology/thread_siblings": mask((1, 2)),
        f"{CPU}/cpu2/topology/thread_siblings": mask((1, 2)),
    }
    assert spans(read(online(range(3)), files).cores) == ["0-1", "2"]


def test_garbage_in_topology_files_is_as_good_as_nothing() -> None:
    """Neither masks nor numbers."""
    files: Files = {
        f"{CPU}/cpu{cpu}/{name}": "\0garbage²"
        for cpu in range(2)
        for name in (
            *("topology/thread_siblings", "topology/core_siblings", "topology/core_id"),
            *("cache/index0/level", "cache/index0/shared_cpu_map", "cache/index1/size"),
        )
    }
    found = read(online(range(2)), files)
    assert spans(found.cores) == ["0", "1"]
    assert spans(found.sockets) == ["0-1"]
    assert found.l1_domains == ()
