"""Accelerators (GPUs, NPUs) from sysfs, procfs and /dev, and whether each is usable.

No driver is called and no device is opened. Each device is read from the first that lists it:

    /sys/bus/pci/devices            every PCI device, including those a container may not use
    /sys/class/drm                  the same cards, if a capture has only this folder
    /proc/driver/nvidia/gpus        NVIDIA's list: model names of the devices of this container
    /sys/class/kfd                  AMD's compute nodes: chips of the devices of this container
    /dev                            the device files that CUDA, ROCm and XPU open
"""

from __future__ import annotations

from enum import StrEnum

from cputrain.machine.cpulist import parse_list
from cputrain.machine.device_drivers import (
    Drivers,
    chip_name,
    describe_amd,
    describe_intel,
    describe_nvidia,
    parse_decimal,
    parse_pairs,
    unbound_reason,
)
from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.machine.source import Source

PCI_FOLDER = "/sys/bus/pci/devices"
DRM_FOLDER = "/sys/class/drm"
WSL_LIBRARY_FOLDER = "/usr/lib/wsl/lib"

PROCESSING_ACCELERATOR = 0x1200
ACCELERATOR_CLASSES = {0x0300, 0x0302, 0x0380, PROCESSING_ACCELERATOR}
"""PCI classes: VGA controller, 3D controller, other display, processing accelerator."""

DISPLAY_VENDORS = {
    *(0x1234, 0x1B36, 0x1AF4, 0x15AD, 0x80EE, 0x1414, 0x5853, 0x1AB8, 0x1D0F, 0x1013),
    *(0x1A03, 0x102B, 0x19E5, 0x126F, 0x18CA),
}
"""Vendors of display adapters without compute: those of hypervisors (QEMU, QXL,
virtio, VMware, VirtualBox, Hyper-V, Xen, Parallels, EC2, Cirrus) and of servers' management
controllers (ASPEED, Matrox, Huawei, Silicon Motion, XGI)."""


class Vendor(StrEnum):
    """Device vendor, from the PCI vendor ID."""

    NVIDIA = "nvidia"
    """0x10de: an H200 on a server."""

    AMD = "amd"
    """0x1002: a Radeon card, an Instinct, or the graphics inside a Ryzen."""

    INTEL = "intel"
    """0x8086: the graphics inside a Core, an Arc card, or the NPU beside them."""

    OTHER = "other"
    """Any other: 0x1da3 is a Gaudi."""


VENDORS = {0x10DE: Vendor.NVIDIA, 0x1002: Vendor.AMD, 0x8086: Vendor.INTEL}


class Accelerator(Record):
    """An accelerator device."""

    vendor: Vendor
    """Device vendor."""

    name: str | None = None
    """Name given by the driver: "NVIDIA H200", "navi31 (gfx1100)"; None if unknown."""

    pci_address: str | None = None
    """PCI address: "0000:19:00.0"."""

    device_id: str | None = None
    """PCI device ID: "0x2335"."""

    driver: str | None = None
    """Kernel driver bound to the device: "nvidia", "amdgpu", "xe"."""

    numa_node: int | None = None
    """NUMA node of the device; None if the firmware does not report it."""

    near_cpus: tuple[int, ...] | None = None
    """Logical CPUs local to the device."""

    memory_bytes: int | None = None
    """Device memory in bytes; known with the amdgpu driver only."""

    integrated: bool | None = None
    """Whether the device shares the CPU's memory; None if unknown."""

    usable: str
    """Sentence that says which API can use the device, or what is missing."""


def read_accelerators(source: Source) -> tuple[Accelerator, ...]:
    """Return accelerators ordered by PCI address, without console adapters."""
    drivers = Drivers(source)
    folders = dict(_pci_folders(source))
    # A partitioned Instinct has a KFD node for each partition, at PCI functions not on the bus.
    hidden = {
        address
        for address in drivers.kfd
        if address not in folders and f"{address[:-1]}0" not in folders
    }
    hidden |= drivers.nvidia.keys() - folders.keys()
    accelerators = [
        _pci_accelerator(source, address, folders[address], drivers)
        if address in folders
        else _driver_accelerator(address, drivers)
        for address in sorted(folders.keys() | hidden)
    ]
    if not any(device.vendor is Vendor.NVIDIA for device in accelerators):
        accelerators.extend(_nvidia_device_files(source, drivers))
    return tuple(accelerators)


def _hexadecimal(digits: str | None) -> int | None:
    try:
        return int(digits or "", 16)
    except ValueError:
        return None


def _pci_folders(source: Source) -> Iterator[tuple[str, str]]:
    """Yield address and sysfs folder of each accelerator listed under PCI or DRM."""
    seen = set(source.names(PCI_FOLDER))
    for address in sorted(seen):
        if _is_accelerator(source, f"{PCI_FOLDER}/{address}"):
            yield address.lower(), f"{PCI_FOLDER}/{address}"
    for card in source.names(DRM_FOLDER):
        if not (card.startswith("card") and card[4:].isdigit()):
            continue  # card0-HDMI-A-1 is a connector of card0, renderD128 the same card
        folder = f"{DRM_FOLDER}/{card}/device"
        slot = parse_pairs(text(source, f"{folder}/uevent"), "=").get("PCI_SLOT_NAME")
        address = slot or (source.link(folder) or "").rpartition("/")[2]
        if address.count(":") == 2 and address not in seen and _is_accelerator(source, folder):
            yield address.lower(), folder


def _is_accelerator(source: Source, folder: str) -> bool:
    """Return whether a PCI device is an accelerator and not a console adapter."""
    device_class = _hexadecimal(text(source, f"{folder}/class", 64))
    if device_class is None or device_class >> 8 not in ACCELERATOR_CLASSES:
        return False
    vendor = _hexadecimal(text(source, f"{folder}/vendor", 64))
    return vendor is not None and (
        device_class >> 8 == PROCESSING_ACCELERATOR or vendor not in DISPLAY_VENDORS
    )


def _pci_accelerator(source: Source, address: str, folder: str, drivers: Drivers) -> Accelerator:
    vendor_id = _hexadecimal(text(source, f"{folder}/vendor", 64))
    vendor = VENDORS.get(vendor_id or 0, Vendor.OTHER)
    driver = (source.link(f"{folder}/driver") or "").rpartition("/")[2]
    driver = driver or parse_pairs(text(source, f"{folder}/uevent"), "=").get("DRIVER", "")
    device_class = (_hexadecimal(text(source, f"{folder}/class", 64)) or 0) >> 8
    numa_node = number(source, f"{folder}/numa_node")
    render = [name for name in source.names(f"{folder}/drm") if name.startswith("renderD")]
    name, memory_bytes, integrated = None, None, None
    if vendor is Vendor.NVIDIA:
        name = drivers.nvidia.get(address, {}).get("Model")
        usable = unbound_reason(driver) or describe_nvidia(driver, address, drivers)
    elif vendor is Vendor.AMD:
        name = text(source, f"{folder}/product_name", 256) or chip_name(drivers.kfd.get(address))
        memory_bytes = number(source, f"{folder}/mem_info_vram_total")
        integrated = _is_amd_integrated(source, folder, drivers.kfd.get(address))
        usable = unbound_reason(driver) or describe_amd(driver, address, render, drivers)
    elif vendor is Vendor.INTEL and device_class != PROCESSING_ACCELERATOR:
        integrated = True if address == "0000:00:02.0" else None
        usable = unbound_reason(driver) or describe_intel(driver, render, drivers)
    else:
        name = "NPU" if vendor is Vendor.INTEL else None
        usable = unbound_reason(driver) or f"the {driver} driver is loaded: no known API uses it"
    return Accelerator(
        vendor=vendor,
        name=name or None,
        pci_address=address,
        device_id=text(source, f"{folder}/device", 64) or None,
        driver=driver or None,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        near_cpus=_cpus(text(source, f"{folder}/local_cpulist", 1 << 14)),
        memory_bytes=memory_bytes if memory_bytes and memory_bytes > 0 else None,
        integrated=integrated,
        usable=usable,
    )


def _cpus(cpu_list: str | None) -> tuple[int, ...] | None:
    # No machine has a million CPUs; a range up to a corrupt number would exhaust the memory.
    if not cpu_list or any(len(part) > 6 for part in cpu_list.replace("-", ",").split(",")):
        return None
    try:
        return parse_list(cpu_list) or None
    except ValueError:
        return None


def _driver_accelerator(address: str, drivers: Drivers) -> Accelerator:
    """Return a device that its driver lists but the PCI bus does not, as in some containers."""
    if address in drivers.nvidia:
        return Accelerator(
            vendor=Vendor.NVIDIA,
            name=drivers.nvidia[address].get("Model") or None,
            pci_address=address,
            driver="nvidia",
            usable=describe_nvidia("nvidia", address, drivers),
        )
    node = drivers.kfd[address]
    minor = parse_decimal(node.get("drm_render_minor"))
    return Accelerator(
        vendor=Vendor.AMD,
        name=chip_name(node),
        pci_address=address,
        device_id=f"{parse_decimal(node.get('device_id')):#06x}" if "device_id" in node else None,
        driver="amdgpu",
        integrated=True if parse_decimal(node.get("cpu_cores_count")) else None,
        usable=describe_amd("amdgpu", address, [f"renderD{minor}"] if minor else [], drivers),
    )


def _nvidia_device_files(source: Source, drivers: Drivers) -> Iterator[Accelerator]:
    """Yield NVIDIA devices visible only as files in /dev, as in sandboxes and WSL."""
    for name in sorted(drivers.files, key=lambda name: (len(name), name)):
        if name.startswith("nvidia") and name[6:].isdigit():
            usable = f"only /dev/{name} of the device is visible"
            if "nvidiactl" not in drivers.files:
                usable += ", and /dev/nvidiactl is absent: CUDA needs it"
            yield Accelerator(vendor=Vendor.NVIDIA, driver="nvidia", usable=usable)
    if "dxg" in drivers.files and "libcuda.so.1" in source.names(WSL_LIBRARY_FOLDER):
        usable = f"WSL provides it as /dev/dxg: CUDA uses {WSL_LIBRARY_FOLDER}/libcuda.so.1"
        yield Accelerator(vendor=Vendor.NVIDIA, driver="dxgkrnl", usable=usable)


def _is_amd_integrated(source: Source, folder: str, node: dict[str, str] | None) -> bool | None:
    """Return whether an AMD device shares the CPU's memory, from its KFD node or VRAM size."""
    if node and parse_decimal(node.get("cpu_cores_count")):
        return True
    if text(source, f"{folder}/mem_info_vram_vendor", 64) not in (None, "", "unknown"):
        return False  # a vendor of memory chips means that the device has memory
    total = number(source, f"{folder}/mem_info_vram_total")
    visible = number(source, f"{folder}/mem_info_vis_vram_total")
    # A discrete GPU maps 256 MiB of its memory, or all of it if it is large; an integrated GPU's
    # carve-out of main memory is small and entirely mapped.
    return True if total and total == visible and total < 4 << 30 else None
