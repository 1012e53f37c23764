"""CPU vendor, model name and instruction sets, from /proc/cpuinfo."""

from __future__ import annotations

from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

ISA_NAMES = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_ne_convert"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx10"),
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svebf16", "svei8mm"),
    *("sme", "sme2", "altivec", "vsx", "mma", "vx", "vxe", "vxe2", "nnpa", "rvv", "lsx", "lasx"),
)
"""Instruction sets that matter for training, by the kernel's names, oldest first in each family."""

ARM_VENDORS = {
    0x41: "ARM",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0x70: "Phytium",
    0xC0: "Ampere",
}

ARM_PARTS = {
    (0x41, 0xC07): "Cortex-A7",
    (0x41, 0xC09): "Cortex-A9",
    (0x41, 0xC0F): "Cortex-A15",
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD80): "Cortex-A520",
    (0x41, 0xD81): "Cortex-A720",
    (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0A1): "ThunderX",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


class Identity(Record):
    """CPU identity."""

    vendor: str | None
    """"AuthenticAMD", "GenuineIntel", "ARM", "IBM", …; None if unknown."""

    model_name: str | None
    """Marketing name; on Arm the names of all core types."""

    family: int | None
    """x86 family."""

    model: int | None
    """x86 model."""

    isa: tuple[str, ...]
    """Supported entries of `ISA_NAMES`."""

    virtual: bool
    """Whether a hypervisor is detected; sockets, caches and modules may then be emulated."""


def read_identity(source: Source, *, full: bool = True) -> Identity:
    """Read the CPU identity from /proc/cpuinfo.

    Without `full` only the file's first 8 KiB are read, since the kernel queries each CPU's
    frequency while writing it; the name may then lack some core types of an Arm machine.
    """
    cpuinfo = text(source, "/proc/cpuinfo", 1 << 24 if full else 1 << 13) or ""
    blocks = parse_blocks(cpuinfo)
    first_values: dict[str, str] = {}
    for block in blocks:
        for key, value in block.items():
            first_values.setdefault(key, value)
    features = set()
    for key in ("flags", "features"):
        features.update(first_values.get(key, "").lower().split())
    features.update(_power_features(first_values.get("cpu", "")))
    if "v" in _single_letter_extensions(
        first_values.get("isa") or first_values.get("hart isa") or ""
    ):
        features.add("rvv")
    return Identity(
        vendor=_vendor(first_values),
        model_name=_model_name(first_values, blocks),
        family=_parse_int(first_values.get("cpu family")),
        model=_parse_int(first_values.get("model")),
        isa=tuple(name for name in ISA_NAMES if name in features),
        virtual="hypervisor" in features
        or text(source, "/sys/hypervisor/type") is not None
        or "emulated" in first_values.get("platform", "") + first_values.get("model", ""),
    )


def parse_blocks(cpuinfo: str) -> list[dict[str, str]]:
    """Parse the paragraphs of /proc/cpuinfo into dictionaries with lower-case keys."""
    blocks: list[dict[str, str]] = [{}]
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            blocks[-1].setdefault(key.strip().lower(), value.strip())
        elif not line.strip() and blocks[-1]:
            blocks.append({})
    return [block for block in blocks if block]


def _single_letter_extensions(isa: str) -> str:
    """Return one-letter extensions: "imafdc" of "rv64imafdc_zicntr" or "rv64imafdc zba"."""
    extensions = "".join(isa.lower().split("_")[0].split()[:1])
    if not extensions.startswith(("rv32", "rv64")):
        return ""
    for long_name in "sxz":
        extensions = extensions.partition(long_name)[0]
    return extensions[4:]


def _vendor(first: dict[str, str]) -> str | None:
    implementer = _parse_int(first.get("cpu implementer"))
    if implementer is not None:
        return ARM_VENDORS.get(implementer, f"implementer {implementer:#x}")
    if first.get("cpu", "").upper().startswith(("POWER", "PPC")):
        return "IBM"
    if first.get("model name", "").startswith("Loongson"):
        return "Loongson"
    return first.get("vendor_id") or first.get("vendor") or first.get("mvendorid")


def _model_name(first: dict[str, str], blocks: list[dict[str, str]]) -> str | None:
    parts = dict.fromkeys(
        (implementer, part)
        for block in blocks
        if (implementer := _parse_int(block.get("cpu implementer"))) is not None
        and (part := _parse_int(block.get("cpu part"))) is not None
    )
    cores = " + ".join(
        ARM_PARTS.get((implementer, part), f"{ARM_VENDORS.get(implementer, 'Arm')} part {part:#x}")
        for implementer, part in parts
    )
    if parts and all(part in ARM_PARTS for part in parts):
        return cores  # the model name of 32-bit kernels contains only the architecture
    names = ("model name", "cpu", "uarch", "cpu model", "processor model")
    name = first.get("model name") or cores or next((first[n] for n in names if first.get(n)), "")
    return " ".join(name.split()) or _s390_name(first)


def _s390_name(first: dict[str, str]) -> str | None:
    """Return an s390 name, from "processor 0: version = FF, …, machine = 2964"."""
    for key, value in first.items():
        number = value.partition("machine = ")[2]
        if key.startswith("processor ") and number:
            return f"machine {number}"
    return None


def _power_features(cpu: str) -> set[str]:
    """Return POWER's instruction sets, from the generation: its cpuinfo lists no flags."""
    if not cpu.upper().startswith("POWER"):
        return {"altivec"} if "altivec" in cpu.lower() else set()
    digits = "".join(char for char in cpu[5:7] if char.isdecimal())
    generation = int(digits) if digits else 0
    features = {"altivec"} if generation >= 6 else set()
    features |= {"vsx"} if generation >= 7 else set()
    return features | ({"mma"} if generation >= 10 else set())


def _parse_int(digits: str | None) -> int | None:
    try:
        return int(digits, 0) if digits else None
    except ValueError:
        return None
