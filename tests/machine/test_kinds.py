"""Fast and frugal cores, by capacity, by Intel's lists, by frequency."""

from __future__ import annotations

from cputrain.machine.cpulist import format_list
from cputrain.machine.kinds import CoreKind, read_kinds
from tests.machine.trees import CPU, Files, Tree


def per_cpu(name: str, *values: int) -> Files:
    """A number for each CPU."""
    return {f"{CPU}/cpu{cpu}/{name}": f"{value}\n" for cpu, value in enumerate(values)}


def kinds(count: int, *parts: Files) -> dict[str, str]:
    """Kinds and their CPUs as lists."""
    found = read_kinds(Tree(*parts), tuple(range(count)))
    return {kind.kind.value: format_list(kind.cpus) for kind in found}


def test_one_kind_is_the_rule() -> None:
    """Where nothing tells cores apart."""
    assert kinds(4) == {"performance": "0-3"}
    assert kinds(0) == {}


def test_capacity_tells_three_sizes_of_arm_cores() -> None:
    """Big ones work with the biggest; little ones do not."""
    capacity = per_cpu("cpu_capacity", 300, 300, 860, 860, 1024)
    assert kinds(5, capacity) == {"performance": "2-4", "efficiency": "0-1"}


def test_capacities_that_differ_within_a_kind_make_no_third() -> None:
    """Ten cores of each kind, each with a maximum of its own."""
    capacity = per_cpu("cpu_capacity", 718, 728, 732, 997, 1010, 1024)
    assert kinds(6, capacity) == {"performance": "3-5", "efficiency": "0-2"}


def test_intels_lists_go_before_frequencies() -> None:
    """Whatever is not on the list of fast cores is frugal, low-power cores too."""
    lists: Files = {
        "/sys/devices/cpu_core/cpus": "0-3\n",
        "/sys/devices/cpu_atom/cpus": "4-5\n",
        "/sys/devices/cpu_lowpower/cpus": "6\n",
    }
    same = per_cpu("cpufreq/cpuinfo_max_freq", *[2_300_000] * 7)
    assert kinds(7, lists, same) == {"performance": "0-3", "efficiency": "4-6"}


def test_a_list_of_fast_cores_that_names_all_means_one_kind() -> None:
    """Frugal cores may be switched off in the firmware."""
    assert kinds(4, {"/sys/devices/cpu_core/cpus": "0-3\n"}) == {"performance": "0-3"}
    assert kinds(4, {"/sys/devices/cpu_core/cpus": "rubbish\n"}) == {"performance": "0-3"}


def test_frequencies_tell_the_rest() -> None:
    """Favoured cores are a little faster; dense cores a lot slower."""
    favoured = per_cpu("cpufreq/cpuinfo_max_freq", 5_000_000, 4_800_000, 4_700_000, 4_600_000)
    assert kinds(4, favoured) == {"performance": "0-3"}
    dense = per_cpu("cpufreq/cpuinfo_max_freq", 5_100_000, 5_100_000, 3_300_000, 3_300_000)
    assert kinds(4, dense) == {"performance": "0-1", "efficiency": "2-3"}


def test_a_number_for_some_cpus_only_tells_nothing() -> None:
    """Old kernels give the first CPU's alone."""
    assert kinds(2, per_cpu("cpufreq/cpuinfo_max_freq", 800_000)) == {"performance": "0-1"}


def test_each_kind_has_its_highest_frequency() -> None:
    """In hertz."""
    dense = per_cpu("cpufreq/cpuinfo_max_freq", 5_100_000, 5_000_000, 3_300_000)
    found = read_kinds(Tree(dense), (0, 1, 2))
    assert [(kind.kind, kind.max_frequency_hz) for kind in found] == [
        (CoreKind.PERFORMANCE, 5_100_000_000),
        (CoreKind.EFFICIENCY, 3_300_000_000),
    ]
