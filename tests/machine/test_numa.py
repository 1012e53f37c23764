"""Memory nodes: with gaps, without CPUs, offline, of a GPU, or none at all."""

from __future__ import annotations

from cputrain.machine.numa import Node, read_nodes
from tests.machine.trees import NODE, Files, Tree, node


def read(*parts: Files, cpus: int = 8) -> dict[int, Node]:
    """The nodes of a machine of eight CPUs, by id."""
    return {found.id: found for found in read_nodes(Tree(*parts), tuple(range(cpus)))}


def test_a_kernel_without_nodes_has_one_with_everything() -> None:
    """Its memory is the machine's."""
    found = read({"/proc/meminfo": "MemTotal:  1024 kB\n"})
    assert found[0].cpus == tuple(range(8))
    assert found[0].memory_bytes == 1 << 20


def test_ids_may_have_gaps_and_two_digits() -> None:
    """Sorted as numbers, not as words."""
    found = read(node(10, (4, 5)), node(2, (2, 3)), node(0, (0, 1)))
    assert list(found) == [0, 2, 10]
    assert found[10].cpus == (4, 5)
    assert found[10].memory_bytes == 1 << 30


def test_memory_without_cpus_is_a_node_too() -> None:
    """What CXL or a device brings."""
    found = read(node(0, range(8)), node(1, (), 64, "17 10"))
    assert found[1].cpus == ()
    assert found[1].memory_bytes == 64 << 30
    assert found[1].distances == (17, 10)


def test_cpus_without_memory_are_a_node_too() -> None:
    """An empty slot beside a socket."""
    found = read(node(0, range(4)), node(1, range(4, 8), None))
    assert found[1].memory_bytes is None
    assert found[1].cpus == (4, 5, 6, 7)


def test_cpus_that_are_offline_are_left_out() -> None:
    """s390 names every CPU that might ever come."""
    assert read(node(0, range(140)), cpus=8)[0].cpus == tuple(range(8))


def test_a_node_that_is_offline_is_left_out() -> None:
    """Its CPUs then are beside no memory."""
    found = read(node(0, (0, 1)), node(1, (2, 3)), {f"{NODE}/online": "1\n"})
    assert list(found) == [1]


def test_other_names_in_the_folder_are_no_nodes() -> None:
    """has_cpu, possible, power, …"""
    files: Files = {f"{NODE}/{name}": "0\n" for name in ("has_cpu", "possible", "nodes", "node")}
    assert list(read(node(3, range(8)), files)) == [3]


def test_the_bus_folder_does_where_the_other_is_hidden() -> None:
    """Sandboxes may hide either."""
    files = {
        path.replace(NODE, "/sys/bus/node/devices"): text for path, text in node(4, (1, 2)).items()
    }
    assert read(files)[4].cpus == (1, 2)


def test_a_list_does_where_the_mask_is_missing() -> None:
    """Either form is enough."""
    assert read({f"{NODE}/node0/cpulist": "0-2\n"})[0].cpus == (0, 1, 2)


def test_cpus_beside_two_nodes_stay_with_the_first() -> None:
    """Some firmware says so, which cannot be."""
    assert list(read(node(0, range(8)), node(1, range(4, 8)))) == [0]


def test_nodes_that_were_made_up_at_boot_share_their_cpus() -> None:
    """Linux divides memory on request, and leaves the CPUs beside every part."""
    files: Files = {"/proc/cmdline": "root=/dev/sda1 numa=fake=2U quiet\n"}
    assert list(read(node(0, range(8)), node(1, range(8)), files)) == [0, 1]


def gpu(cpu: str) -> Files:
    """A machine with one node that is a GPU's memory."""
    return {
        **node(0, range(8)),
        **node(255, (), 16),
        "/proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "Node: 255\nStatus: online\n",
        "/proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: \n",
        "/proc/cpuinfo": f"processor : 0\ncpu : {cpu}\n",
    }


def test_a_gpus_own_memory_is_no_node_on_power() -> None:
    """As other tools have it: nothing a CPU computes on belongs there."""
    assert list(read(gpu("POWER9, altivec supported"))) == [0]


def test_a_gpus_own_memory_is_a_node_without_cpus_elsewhere() -> None:
    """Grace shares its address space with its GPU."""
    assert list(read(gpu(""))) == [0, 255]
