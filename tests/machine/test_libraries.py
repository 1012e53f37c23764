"""The C library, the allocators that could go before it, and the driver of a GPU."""

from __future__ import annotations

import pytest

from cputrain.machine.libraries import read_gpu_driver, read_libc, read_preloads
from tests.machine.trees import Tree

ELF = b"\x7fELF\x02\x01\x01"


class WithLibc(Tree):
    """A tree whose C library is known."""

    answer: str | None = None

    def libc(self) -> str | None:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("glibc 2.36", (2, 36)),
        ("glibc 2.17.1", (2, 17)),
        ("musl 1.2.4", None),
        ("glibc", None),
        ("glibc 2.x", None),
        (None, None),
    ],
)
def test_only_glibc_has_a_version(answer: str | None, version: tuple[int, int] | None) -> None:
    """Its settings are the only ones that are used."""
    tree = WithLibc()
    tree.answer = answer
    assert read_libc(tree) == version


def test_the_versioned_name_is_enough() -> None:
    """Distributions install the other one for developers only."""
    tree = Tree({"/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4": ELF})
    assert read_preloads(tree) == {"tcmalloc": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"}


def test_what_is_no_library_is_not_preloaded() -> None:
    """A linker script by the same name would end every program."""
    assert read_preloads(Tree({"/usr/lib/libjemalloc.so": "GROUP ( libjemalloc.so.2 )"})) == {}


def test_the_environments_own_folder_goes_first() -> None:
    """conda's and a virtual environment's."""
    files: dict[str, str | bytes] = {
        "/opt/env/lib/libmimalloc.so.2": ELF,
        "/usr/lib64/libmimalloc.so.2": ELF,
    }
    found = read_preloads(Tree(files, environment={"CONDA_PREFIX": "/opt/env"}))
    assert found == {"mimalloc": "/opt/env/lib/libmimalloc.so.2"}


def test_a_gpu_driver_is_known_by_its_files() -> None:
    """AMD's shows the CPU as a node too."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    assert read_gpu_driver(Tree({"/proc/driver/nvidia/version": "NVRM"})) == "NVIDIA's driver"
    assert read_gpu_driver(Tree({f"{nodes}/0/name": "", f"{nodes}/1/name": "x"})).startswith("AMD")
    assert read_gpu_driver(Tree({f"{nodes}/0/name": ""})) == ""
    assert read_gpu_driver(Tree()) == ""
