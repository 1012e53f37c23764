"""State of the accelerators' kernel drivers, and what is missing to use a device.

NVIDIA and AMD each keep a list of their own beside the bus's. In a container these lists hold only
what the container was given, while the bus shows every device of the host.
"""

from __future__ import annotations

from cputrain.machine.source import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.machine.source import Source

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
HELD_FOR_A_GUEST = ("vfio-pci", "pci-stub", "xen-pciback")


class Drivers:
    """Device files and driver tables, read once for all devices."""

    def __init__(self, source: Source) -> None:
        self.files = frozenset(source.names("/dev"))
        self.render_files = frozenset(source.names("/dev/dri"))
        self.nvidia = {
            address.lower(): pairs(text(source, f"{NVIDIA_GPUS}/{address}/information"), ":")
            for address in source.names(NVIDIA_GPUS)
        }
        self.kfd = dict(_compute_nodes(source))


def pairs(lines: str | None, separator: str | None) -> dict[str, str]:
    """Parse lines such as "Model: NVIDIA H200" into a dictionary."""
    split = (line.split(separator, 1) for line in (lines or "").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in split if len(pair) == 2}


def decimal(found: str | None) -> int:
    """Parse a decimal number; return 0 for other text, the kernel's value of absent properties."""
    return int(found) if found and found.isascii() and found.isdigit() and len(found) < 20 else 0


def _compute_nodes(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield AMD's KFD nodes by PCI address; a container can read only the nodes assigned to it."""
    for node in source.names(KFD_NODES):
        facts = pairs(text(source, f"{KFD_NODES}/{node}/properties"), None)
        if not decimal(facts.get("simd_count")):
            continue  # a processor, or a node that is not ours
        where = decimal(facts.get("location_id"))
        bus, slot, function = where >> 8 & 0xFF, where >> 3 & 0x1F, where & 7
        facts["name"] = text(source, f"{KFD_NODES}/{node}/name", 256) or ""
        yield f"{decimal(facts.get('domain')):04x}:{bus:02x}:{slot:02x}.{function}", facts


def chip(node: dict[str, str] | None) -> str | None:
    """Return an AMD chip name: "navi31 (gfx1100)", or "gfx1100" if the driver has no name."""
    node = node or {}
    version = decimal(node.get("gfx_target_version"))
    target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""
    name = node.get("name", "")
    if not name or name == "ip discovery":  # what newer kernels call every chip
        return target or None
    return f"{name} ({target})" if target else name


def unbound(driver: str) -> str | None:
    """Return why no usable driver is bound to the device; None if one is."""
    if not driver:
        return "no driver is bound"
    if driver in HELD_FOR_A_GUEST:
        return f"the {driver} driver holds it for a virtual machine"
    return None


def nvidia_usable(driver: str, address: str, drivers: Drivers) -> str:
    """Describe whether CUDA can use the device, or what is missing."""
    if driver != "nvidia":
        return f"the {driver} driver is loaded: CUDA needs NVIDIA's own"
    if drivers.nvidia and address not in drivers.nvidia:
        return f"NVIDIA's driver is loaded, but {NVIDIA_GPUS} leaves it out: it was not given to us"
    minor = drivers.nvidia.get(address, {}).get("Device Minor", "")
    needed = ("nvidiactl", f"nvidia{minor}") if minor.isdigit() else ("nvidiactl",)
    for name in needed:
        if name not in drivers.files:
            return (
                f"NVIDIA's driver is loaded, but /dev/{name} is absent: CUDA needs it, "
                "and nvidia-modprobe makes it where it may"
            )
    return f"NVIDIA's driver is loaded and /dev/{needed[-1]} is there: CUDA can be used"


def amd_usable(driver: str, address: str, render: list[str], drivers: Drivers) -> str:
    """Describe whether ROCm can use the device, or what is missing."""
    if driver != "amdgpu":
        return f"the {driver} driver is loaded: ROCm needs amdgpu"
    if "kfd" not in drivers.files:
        return "/dev/kfd is absent: ROCm cannot be used"
    if address not in drivers.kfd:
        return f"{KFD_NODES} shows no node for it: ROCm does not know it, or it was not given to us"
    if render and drivers.render_files.isdisjoint(render):
        return f"/dev/dri/{render[0]} is absent: ROCm cannot be used"
    return "the amdgpu driver is loaded and /dev/kfd is there: ROCm can be used"


def intel_usable(driver: str, render: list[str], drivers: Drivers) -> str:
    """Describe whether XPU and OpenCL can use the device, or what is missing."""
    if driver not in ("i915", "xe"):
        return f"the {driver} driver is loaded: XPU and OpenCL need i915 or xe"
    there = sorted(drivers.render_files.intersection(render))
    if render and not there:
        return f"/dev/dri/{render[0]} is absent: XPU and OpenCL cannot be used"
    if there:
        return f"the {driver} driver is loaded and /dev/dri/{there[0]} is there: OpenCL can be used"
    return f"the {driver} driver is loaded, but no render file of it is known"
