"""Accelerators and OpenCL drivers, read from sysroots written as real machines write them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain.machine.accelerators import Accelerator, Vendor, read_accelerators
from cputrain.machine.opencl_drivers import Implementation, OpenCLDriver, read_opencl_drivers
from cputrain.machine.source import RootSource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

H200_INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 320
GPU UUID: \t GPU-d41c7a14-1016-38cc-9e67-3bb18ef8c1d5
Video BIOS: \t 96.00.a5.00.1a
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""

KFD_CPU = "cpu_cores_count 16\nsimd_count 0\nmem_banks_count 1\nvendor_id 0\nlocation_id 0\n"

KFD_GPU = """\
cpu_cores_count {cpus}
simd_count 192
mem_banks_count 1
wave_front_size 32
gfx_target_version {gfx}
vendor_id 4098
device_id 29772
location_id {location}
domain 0
drm_render_minor 128
num_xcc 1
"""


class Sysroot(RootSource):
    """A file tree to be filled, with environment variables of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.variables: dict[str, str] = {}

    def environment(self) -> Mapping[str, str]:
        return self.variables

    def file(self, path: str, content: str | bytes = "") -> None:
        place = self.root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)

    def symlink(self, path: str, target: str) -> None:
        place = self.root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(target, place)

    def pci(self, address: str, kind: str, vendor: str, device: str, **more: str) -> None:
        """A PCI device; `driver` and `drm` are made into what sysfs has, the rest are files."""
        folder = f"/sys/bus/pci/devices/{address}"
        files = {"class": kind, "vendor": vendor, "device": device, "numa_node": "-1", **more}
        if (driver := files.pop("driver", "")) != "":
            self.symlink(f"{folder}/driver", f"../../../bus/pci/drivers/{driver}")
        for entry in files.pop("drm", "").split():
            self.file(f"{folder}/drm/{entry}/dev", "226:0\n")
        for name, content in files.items():
            self.file(f"{folder}/{name}", content + "\n")

    def kfd(self, node: int, properties: str, name: str = "") -> None:
        folder = f"/sys/class/kfd/kfd/topology/nodes/{node}"
        self.file(f"{folder}/properties", properties)
        self.file(f"{folder}/name", name + "\n")

    def devices(self, *names: str) -> None:
        for name in names:
            self.file(f"/dev/{name}")


@pytest.fixture
def machine(tmp_path: Path) -> Sysroot:
    return Sysroot(tmp_path)


def only(found: tuple[Any, ...]) -> Any:
    (one,) = found
    return one


def h200_server(machine: Sysroot, given: tuple[int, ...] = (0, 1)) -> None:
    """Two H200 and the console of a server; `given` are those that this container may use."""
    machine.pci("0000:03:00.0", "0x030000", "0x1a03", "0x2000", driver="ast")
    for minor, (address, node, cpus) in enumerate(
        [("0000:19:00.0", "0", "0-47,96-143"), ("0000:9b:00.0", "1", "48-95,144-191")]
    ):
        machine.pci(
            address, "0x030200", "0x10de", "0x2335",
            driver="nvidia", numa_node=node, local_cpulist=cpus,
        )  # fmt: skip
        if minor in given:
            content = H200_INFORMATION.format(address=address, minor=minor)
            machine.file(f"/proc/driver/nvidia/gpus/{address}/information", content)
            machine.devices(f"nvidia{minor}")
    machine.pci("0000:05:00.0", "0x068000", "0x10de", "0x22a3", driver="nvidia-nvswitch")
    machine.devices("nvidiactl", "nvidia-uvm", "null")


def test_a_server_with_two_h200_shows_them_with_their_nodes_and_leaves_its_console_out(
    machine: Sysroot,
) -> None:
    h200_server(machine)
    first, second = read_accelerators(machine)
    assert first == Accelerator(
        vendor=Vendor.NVIDIA,
        name="NVIDIA H200",
        pci_address="0000:19:00.0",
        device_id="0x2335",
        driver="nvidia",
        numa_node=0,
        near_cpus=(*range(48), *range(96, 144)),
        usable="NVIDIA's driver is loaded and /dev/nvidia0 exists: CUDA can be used",
    )
    assert (second.pci_address, second.numa_node) == ("0000:9b:00.0", 1)
    assert "/dev/nvidia1" in second.usable


def test_a_gpu_of_the_host_that_the_container_was_not_given_says_so(machine: Sysroot) -> None:
    h200_server(machine, given=(1,))
    first, second = read_accelerators(machine)
    assert first.usable.endswith("it is not assigned to this container")
    assert second.usable.endswith("CUDA can be used")


def test_nvidias_driver_without_its_device_files_names_the_missing_one(machine: Sysroot) -> None:
    machine.pci("0000:01:00.0", "0x030000", "0x10de", "0x2684", driver="nvidia")
    content = H200_INFORMATION.format(address="0000:01:00.0", minor=0)
    machine.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", content)
    assert "/dev/nvidiactl is absent" in only(read_accelerators(machine)).usable
    machine.devices("nvidiactl")
    assert "/dev/nvidia0 is absent" in only(read_accelerators(machine)).usable


def test_a_container_whose_pci_bus_is_hidden_is_known_by_the_drivers_own_list(
    machine: Sysroot,
) -> None:
    content = H200_INFORMATION.format(address="0000:19:00.0", minor=3)
    machine.file("/proc/driver/nvidia/gpus/0000:19:00.0/information", content)
    machine.devices("nvidiactl", "nvidia3")
    assert only(read_accelerators(machine)) == Accelerator(
        vendor=Vendor.NVIDIA,
        name="NVIDIA H200",
        pci_address="0000:19:00.0",
        driver="nvidia",
        usable="NVIDIA's driver is loaded and /dev/nvidia3 exists: CUDA can be used",
    )


def test_a_sandbox_that_shows_only_device_files_still_counts_its_gpus(machine: Sysroot) -> None:
    machine.devices("nvidia0", "nvidia1", "nvidia10", "nvidia-uvm")
    found = read_accelerators(machine)
    assert [device.usable.split()[1] for device in found] == [
        "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10",
    ]  # fmt: skip
    assert all("/dev/nvidiactl is absent" in device.usable for device in found)


def test_wsl_lends_the_gpu_of_windows(machine: Sysroot) -> None:
    machine.pci("7cd5:00:00.0", "0x030200", "0x1414", "0x008e", driver="dxgkrnl")
    machine.devices("dxg")
    assert read_accelerators(machine) == ()
    machine.file("/usr/lib/wsl/lib/libcuda.so.1")
    assert only(read_accelerators(machine)).driver == "dxgkrnl"


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("nouveau", "the nouveau driver is loaded: CUDA needs NVIDIA's driver"),
        ("", "no driver is bound"),
        ("vfio-pci", "the vfio-pci driver reserves it for a virtual machine"),
    ],
)
def test_a_geforce_without_nvidias_driver_says_what_is_missing(
    machine: Sysroot, driver: str, said: str
) -> None:
    machine.pci("0000:01:00.0", "0x030000", "0x10de", "0x1b80", driver=driver)
    found = only(read_accelerators(machine))
    assert (found.usable, found.driver, found.numa_node) == (said, driver or None, None)


def radeon(machine: Sysroot) -> None:
    """A Radeon RX 7900 XTX on amdgpu, with its compute node and its sound function."""
    machine.pci(
        "0000:03:00.0", "0x030000", "0x1002", "0x744c", driver="amdgpu", drm="card1 renderD128",
        mem_info_vram_total="25753026560", mem_info_vis_vram_total="25753026560",
        mem_info_vram_vendor="samsung", local_cpulist="0-31",
    )  # fmt: skip
    machine.pci("0000:03:00.1", "0x040300", "0x1002", "0xab30", driver="snd_hda_intel")
    machine.kfd(0, KFD_CPU)
    machine.kfd(1, KFD_GPU.format(cpus=0, gfx=110000, location=768), "ip discovery")
    machine.devices("kfd", "dri/card1", "dri/renderD128")


def test_a_radeon_on_amdgpu_with_its_compute_node_can_be_used(machine: Sysroot) -> None:
    radeon(machine)
    found = only(read_accelerators(machine))
    assert found.vendor is Vendor.AMD
    assert found.name == "gfx1100"
    assert found.memory_bytes == 25753026560
    assert found.integrated is False
    assert found.usable.endswith("ROCm can be used")


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("/dev/kfd", "/dev/kfd is absent: ROCm cannot be used"),
        ("/dev/dri/renderD128", "/dev/dri/renderD128 is absent: ROCm cannot be used"),
        ("/sys/class/kfd/kfd/topology/nodes/1/properties", "has no node for it"),
    ],
)
def test_a_radeon_names_the_first_thing_that_rocm_misses(
    machine: Sysroot, removed: str, said: str
) -> None:
    radeon(machine)
    os.unlink(machine.root + removed)
    assert said in only(read_accelerators(machine)).usable


def test_an_old_radeon_on_the_radeon_driver_is_told_to_need_amdgpu(machine: Sysroot) -> None:
    machine.pci("0000:01:00.0", "0x030000", "0x1002", "0x6798", driver="radeon")
    assert only(read_accelerators(machine)).usable.endswith("ROCm needs amdgpu")


@pytest.mark.parametrize(
    ("gfx", "name", "expected"),
    [
        (90010, "aldebaran", "aldebaran (gfx90a)"),
        (90402, "", "gfx942"),
        (100306, "ip discovery", "gfx1036"),
        (0, "raven", "raven"),
        (0, "", None),
    ],
)
def test_amds_chips_are_named_by_their_compute_node(
    machine: Sysroot, gfx: int, name: str, expected: str | None
) -> None:
    machine.kfd(1, KFD_GPU.format(cpus=0, gfx=gfx, location=0xC100), name)
    found = only(read_accelerators(machine))
    assert (found.pci_address, found.name, found.device_id) == ("0000:c1:00.0", expected, "0x744c")


def test_a_product_name_from_the_board_wins_over_the_chips(machine: Sysroot) -> None:
    radeon(machine)
    machine.file("/sys/bus/pci/devices/0000:03:00.0/product_name", "AMD INSTINCT MI250X\n")
    assert only(read_accelerators(machine)).name == "AMD INSTINCT MI250X"


def test_partitions_of_an_instinct_count_as_the_one_device_that_the_bus_shows(
    machine: Sysroot,
) -> None:
    machine.pci("0000:c1:00.0", "0x120000", "0x1002", "0x74a1", driver="amdgpu")
    for partition in range(8):
        location = 0xC100 + partition
        machine.kfd(2 + partition, KFD_GPU.format(cpus=0, gfx=90402, location=location))
    assert only(read_accelerators(machine)).name == "gfx942"


def test_graphics_inside_a_ryzen_are_integrated_when_node_or_memory_tells(
    machine: Sysroot,
) -> None:
    carved = {"mem_info_vram_total": "536870912", "mem_info_vis_vram_total": "536870912"}
    machine.pci("0000:0c:00.0", "0x030000", "0x1002", "0x164e", driver="amdgpu", **carved)
    machine.pci("0000:0d:00.0", "0x030000", "0x1002", "0x15d8", driver="amdgpu")
    machine.pci("0000:0e:00.0", "0x030000", "0x1002", "0x7340", driver="amdgpu")
    machine.kfd(0, KFD_GPU.format(cpus=8, gfx=90002, location=0x0D00), "raven")
    by_memory, by_node, untold = read_accelerators(machine)
    assert (by_memory.integrated, by_node.integrated, untold.integrated) == (True, True, None)


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_the_graphics_of_a_core_are_integrated_and_serve_opencl(
    machine: Sysroot, driver: str
) -> None:
    machine.pci(
        "0000:00:02.0", "0x030000", "0x8086", "0x7d55", driver=driver, drm="card0 renderD128",
    )  # fmt: skip
    assert "/dev/dri/renderD128 is absent" in only(read_accelerators(machine)).usable
    machine.devices("dri/card0", "dri/renderD128")
    found = only(read_accelerators(machine))
    assert (found.vendor, found.integrated, found.driver) == (Vendor.INTEL, True, driver)
    assert found.usable.endswith("OpenCL can be used")


def test_an_arc_card_is_not_called_integrated_and_an_npu_is_no_gpu(machine: Sysroot) -> None:
    machine.pci("0000:03:00.0", "0x030000", "0x8086", "0xe20b", driver="simple-framebuffer")
    machine.pci("0000:00:0b.0", "0x120000", "0x8086", "0x7d1d", driver="intel_vpu")
    npu, arc = read_accelerators(machine)
    assert (npu.name, npu.usable) == (
        "NPU", "the intel_vpu driver is loaded: no known API uses it",
    )  # fmt: skip
    assert arc.integrated is None
    assert arc.usable.endswith("XPU and OpenCL need i915 or xe")


def test_a_gaudi_is_another_vendors_accelerator(machine: Sysroot) -> None:
    machine.pci("0000:33:00.0", "0x120000", "0x1da3", "0x1020", driver="habanalabs")
    assert only(read_accelerators(machine)).vendor is Vendor.OTHER


@pytest.mark.parametrize(
    ("vendor", "device"),
    [("0x1234", "0x1111"), ("0x1af4", "0x1050"), ("0x15ad", "0x0405"), ("0x102b", "0x0536")],
)
def test_a_console_adapter_is_no_accelerator(machine: Sysroot, vendor: str, device: str) -> None:
    machine.pci("0000:00:01.0", "0x030000", vendor, device, driver="bochs-drm", drm="card0")
    machine.symlink("/sys/class/drm/card0/device", "../../../bus/pci/devices/0000:00:01.0")
    assert read_accelerators(machine) == ()


def test_a_card_is_found_by_the_display_system_where_the_bus_was_not_copied(
    machine: Sysroot,
) -> None:
    folder = "/sys/devices/pci0000:00/0000:00:02.0"
    for name, content in {"class": "0x030000", "vendor": "0x8086", "device": "0x46a6"}.items():
        machine.file(f"{folder}/{name}", content)
    machine.symlink("/sys/class/drm/card0/device", "../../../devices/pci0000:00/0000:00:02.0")
    machine.symlink("/sys/class/drm/card0-eDP-1/device", "../card0")
    found = only(read_accelerators(machine))
    assert (found.pci_address, found.driver) == ("0000:00:02.0", None)
    machine.file(f"{folder}/uevent", "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n")
    assert only(read_accelerators(machine)).driver == "i915"


def test_a_card_seen_on_the_bus_and_by_the_display_system_is_one(machine: Sysroot) -> None:
    radeon(machine)
    machine.symlink("/sys/class/drm/card1/device", "../../../bus/pci/devices/0000:03:00.0")
    assert len(read_accelerators(machine)) == 1


def test_an_empty_machine_has_no_accelerator_and_no_opencl_driver(machine: Sysroot) -> None:
    assert read_accelerators(machine) == ()
    assert read_opencl_drivers(machine) == ()


def test_this_machine_can_be_read_and_written_as_json() -> None:
    live = RootSource()
    found = [item.as_json() for item in (*read_accelerators(live), *read_opencl_drivers(live))]
    assert json.loads(json.dumps(found)) == found


NONSENSE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"0x", b"0-99999999999", b"9-1", b"0-3:0", b"\xff\xfe", b"-" * 30]),
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(NONSENSE, min_size=12, max_size=12))
def test_nonsense_in_any_file_is_never_an_exception(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    machine = Sysroot(tmp_path_factory.mktemp("nonsense"))
    for address, vendor in (("0000:03:00.0", "0x1002"), ("0000:04:00.0", "0x10de")):
        machine.pci(address, "0x030000", vendor, "0x1", driver="amdgpu")
    names = ("device", "numa_node", "local_cpulist", "mem_info_vram_total", "product_name")
    for name, content in zip(names, contents[:5], strict=True):
        machine.file(f"/sys/bus/pci/devices/0000:03:00.0/{name}", content)
    machine.file("/sys/bus/pci/devices/0000:05:00.0/class", contents[5])
    machine.file("/sys/class/drm/card0/device/uevent", contents[6])
    machine.file("/proc/driver/nvidia/gpus/0000:04:00.0/information", contents[7])
    machine.file("/sys/class/kfd/kfd/topology/nodes/1/properties", contents[8])
    machine.file("/etc/OpenCL/vendors/odd.icd", contents[9])
    machine.file("/etc/ld.so.conf.d/odd.conf", contents[10])
    machine.variables["OCL_ICD_FILENAMES"] = contents[11].decode("utf-8", "replace")
    assert len(read_accelerators(machine)) >= 2
    assert any(driver.name == "odd.icd" for driver in read_opencl_drivers(machine))


def test_pocl_named_by_its_file_is_found_among_the_system_libraries(machine: Sysroot) -> None:
    machine.file("/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n")
    machine.file("/usr/lib/x86_64-linux-gnu/libpocl.so.2.11.0")
    machine.symlink("/usr/lib/x86_64-linux-gnu/libpocl.so.2", "libpocl.so.2.11.0")
    assert only(read_opencl_drivers(machine)) == OpenCLDriver(
        name="pocl.icd", library="libpocl.so.2", found=True, guess=Implementation.POCL
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("/usr/lib/x86_64-linux-gnu/libpocl.so.2.10.0\n", "the file it names is absent"),
        ("libpocl.so.2\n", "the library it names is in none of the linker's folders"),
        ("../lib/libpocl.so\n", "is relative"),
        ("", "is empty: it should name a library"),
        ("lib\0pocl.so\n", "unprintable"),
    ],
)
def test_a_broken_pocl_file_says_what_is_wrong(machine: Sysroot, content: str, said: str) -> None:
    machine.file("/etc/OpenCL/vendors/pocl.icd", content)
    machine.symlink("/usr/lib/libpocl.so.2", "libpocl.so.2.10.0")
    driver = only(read_opencl_drivers(machine))
    assert not driver.found
    assert said in driver.note


def test_a_file_that_cannot_be_read_is_reported_and_no_failure(machine: Sysroot) -> None:
    machine.symlink("/etc/OpenCL/vendors/gone.icd", "/nix/store/gone.icd")
    driver = only(read_opencl_drivers(machine))
    assert (driver.found, driver.library) == (False, "")
    assert "/etc/OpenCL/vendors/gone.icd cannot be read" in driver.note


def test_links_in_a_circle_count_as_absent(machine: Sysroot) -> None:
    machine.file("/etc/OpenCL/vendors/pocl.icd", "/opt/pocl/libpocl.so\n")
    machine.symlink("/opt/pocl/libpocl.so", "libpocl.so")
    assert not only(read_opencl_drivers(machine)).found


@pytest.mark.parametrize(
    ("library", "whose"),
    [
        ("libpocl.so.2.11.0", Implementation.POCL),
        ("libnvidia-opencl.so.1", Implementation.NVIDIA),
        ("libamdocl64.so", Implementation.AMD),
        ("/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so", Implementation.INTEL),
        ("libintelocl.so", Implementation.INTEL),
        ("libRusticlOpenCL.so.1", Implementation.MESA),
        ("libMesaOpenCL.so.1", Implementation.MESA),
        ("libxilinxopencl.so", Implementation.OTHER),
        ("/home/nvidia/lib/libpocl.so", Implementation.POCL),
    ],
)
def test_whose_driver_it_is_is_guessed_from_the_librarys_name(
    machine: Sysroot, library: str, whose: Implementation
) -> None:
    machine.file("/etc/OpenCL/vendors/some.icd", library)
    assert only(read_opencl_drivers(machine)).guess is whose


def test_rocms_library_is_found_by_the_linkers_configuration(machine: Sysroot) -> None:
    machine.file("/etc/OpenCL/vendors/amdocl64.icd", "libamdocl64.so\n")
    machine.file("/opt/rocm-6.2.0/lib/libamdocl64.so")
    assert not only(read_opencl_drivers(machine)).found
    machine.file("/etc/ld.so.conf.d/10-rocm-opencl.conf", "# ROCm\n/opt/rocm-6.2.0/lib\n")
    assert only(read_opencl_drivers(machine)).found


def test_nvidias_library_without_a_file_is_reported_with_a_note(machine: Sysroot) -> None:
    machine.file("/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.580.159.04")
    machine.symlink(
        "/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1", "libnvidia-opencl.so.580.159.04"
    )
    driver = only(read_opencl_drivers(machine))
    assert (driver.name, driver.found, driver.guess) == (None, True, Implementation.NVIDIA)
    assert driver.library == "/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1"
    assert driver.note.startswith("no .icd file names it")


def test_nvidias_loader_in_its_mounted_folder_is_enough_to_report_it(machine: Sysroot) -> None:
    machine.file("/usr/local/nvidia/lib64/libOpenCL.so.1")
    driver = only(read_opencl_drivers(machine))
    assert (driver.found, driver.library) == (True, "/usr/local/nvidia/lib64/libOpenCL.so.1")


def test_libraries_named_by_the_environment_come_first(machine: Sysroot) -> None:
    machine.file("/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2")
    machine.file("/opt/drivers/libnvidia-opencl.so.1")
    machine.variables["OCL_ICD_FILENAMES"] = "libnvidia-opencl.so.1:libabsent.so"
    machine.variables["LD_LIBRARY_PATH"] = "/opt/drivers::relative"
    nvidia, absent, pocl = read_opencl_drivers(machine)
    assert (nvidia.name, nvidia.found, nvidia.note) == (None, True, "named by OCL_ICD_FILENAMES")
    assert (absent.library, absent.found) == ("libabsent.so", False)
    assert pocl.name == "pocl.icd"


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("OCL_ICD_VENDORS", "/opt/vendors", "other.icd"),
        ("OPENCL_VENDOR_PATH", "/opt/vendors/", "other.icd"),
        ("OCL_ICD_VENDORS", "/opt/vendors/other.icd", "other.icd"),
        ("OCL_ICD_VENDORS", "pocl.icd", "pocl.icd"),
        ("OCL_ICD_VENDORS", "/opt/lib/libpocl.so", None),
    ],
)
def test_the_vendors_variable_may_name_a_folder_a_file_or_a_library(
    machine: Sysroot, variable: str, value: str, name: str | None
) -> None:
    machine.file("/opt/lib/libpocl.so")
    machine.file("/opt/vendors/other.icd", "/opt/lib/libpocl.so")
    machine.file("/opt/vendors/readme.txt", "no driver")
    machine.file("/etc/OpenCL/vendors/pocl.icd", "/opt/lib/libpocl.so")
    machine.variables[variable] = value
    driver = only(read_opencl_drivers(machine))
    assert (driver.name, driver.library, driver.found) == (name, "/opt/lib/libpocl.so", True)
