"""State of the accelerators' kernel drivers, and what is missing to use a device.

The NVIDIA and AMD drivers list their devices separately from the PCI bus. In a container these
lists hold only the devices assigned to the container, while the bus shows all devices of the host.
"""

from __future__ import annotations

from cputrain.machine.source import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.machine.source import Source

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PASSTHROUGH_DRIVERS = ("vfio-pci", "pci-stub", "xen-pciback")


class Drivers:
    """Device files and driver tables, read once for all devices."""

    def __init__(self, source: Source) -> None:
        self.files = frozenset(source.names("/dev"))
        self.render_files = frozenset(source.names("/dev/dri"))
        self.nvidia = {
            address.lower(): parse_pairs(text(source, f"{NVIDIA_GPUS}/{address}/information"), ":")
            for address in source.names(NVIDIA_GPUS)
        }
        self.kfd = dict(_compute_nodes(source))


def parse_pairs(lines: str | None, separator: str | None) -> dict[str, str]:
    """Parse lines such as "Model: NVIDIA H200" into a dictionary."""
    split_lines = (line.split(separator, 1) for line in (lines or "").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in split_lines if len(pair) == 2}


def parse_decimal(digits: str | None) -> int:
    """Parse a decimal number; return 0 for other text, the kernel's value of absent properties."""
    return (
        int(digits) if digits and digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    )


def _compute_nodes(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield AMD's KFD nodes by PCI address; a container can read only the nodes assigned to it."""
    for node in source.names(KFD_NODES):
        properties = parse_pairs(text(source, f"{KFD_NODES}/{node}/properties"), None)
        if not parse_decimal(properties.get("simd_count")):
            continue  # a CPU, or a node assigned to another container
        location = parse_decimal(properties.get("location_id"))
        bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
        properties["name"] = text(source, f"{KFD_NODES}/{node}/name", 256) or ""
        yield (
            f"{parse_decimal(properties.get('domain')):04x}:{bus:02x}:{slot:02x}.{function}",
            properties,
        )


def chip_name(node: dict[str, str] | None) -> str | None:
    """Return an AMD chip name: "navi31 (gfx1100)", or "gfx1100" if the driver has no name."""
    node = node or {}
    version = parse_decimal(node.get("gfx_target_version"))
    target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""
    name = node.get("name", "")
    if not name or name == "ip discovery":  # newer kernels give this name to every chip
        return target or None
    return f"{name} ({target})" if target else name


def unbound_reason(driver: str) -> str | None:
    """Return why no usable driver is bound to the device; None if one is."""
    if not driver:
        return "no driver is bound"
    if driver in PASSTHROUGH_DRIVERS:
        return f"the {driver} driver reserves it for a virtual machine"
    return None


def describe_nvidia(driver: str, address: str, drivers: Drivers) -> str:
    """Describe whether CUDA can use the device, or what is missing."""
    if driver != "nvidia":
        return f"the {driver} driver is loaded: CUDA needs NVIDIA's driver"
    if drivers.nvidia and address not in drivers.nvidia:
        return (
            f"NVIDIA's driver is loaded, but {NVIDIA_GPUS} does not list the device: "
            "it is not assigned to this container"
        )
    minor = drivers.nvidia.get(address, {}).get("Device Minor", "")
    needed_files = ("nvidiactl", f"nvidia{minor}") if minor.isdigit() else ("nvidiactl",)
    for name in needed_files:
        if name not in drivers.files:
            return (
                f"NVIDIA's driver is loaded, but /dev/{name} is absent: CUDA needs it; "
                "nvidia-modprobe can create it"
            )
    return f"NVIDIA's driver is loaded and /dev/{needed_files[-1]} exists: CUDA can be used"


def describe_amd(driver: str, address: str, render: list[str], drivers: Drivers) -> str:
    """Describe whether ROCm can use the device, or what is missing."""
    if driver != "amdgpu":
        return f"the {driver} driver is loaded: ROCm needs amdgpu"
    if "kfd" not in drivers.files:
        return "/dev/kfd is absent: ROCm cannot be used"
    if address not in drivers.kfd:
        return (
            f"{KFD_NODES} has no node for it: ROCm does not support the device, "
            "or it is not assigned to this container"
        )
    if render and drivers.render_files.isdisjoint(render):
        return f"/dev/dri/{render[0]} is absent: ROCm cannot be used"
    return "the amdgpu driver is loaded and /dev/kfd exists: ROCm can be used"


def describe_intel(driver: str, render: list[str], drivers: Drivers) -> str:
    """Describe whether XPU and OpenCL can use the device, or what is missing."""
    if driver not in ("i915", "xe"):
        return f"the {driver} driver is loaded: XPU and OpenCL need i915 or xe"
    available_files = sorted(drivers.render_files.intersection(render))
    if render and not available_files:
        return f"/dev/dri/{render[0]} is absent: XPU and OpenCL cannot be used"
    if available_files:
        return (
            f"the {driver} driver is loaded and /dev/dri/{available_files[0]} exists: "
            "OpenCL can be used"
        )
    return f"the {driver} driver is loaded, but the device has no known render file"
