"""macOS hardware facts from sysctl, the only source of performance and efficiency cores there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSCTL = "/usr/sbin/sysctl"
SYSCTL_TIMEOUT_S = 5.0
SYSCTL_NAMES = (
    *("machdep.cpu.brand_string", "hw.memsize", "hw.physicalcpu", "hw.logicalcpu"),
    *("hw.l2cachesize", "hw.l3cachesize", "hw.optional"),
    *(f"hw.perflevel{level}.physicalcpu" for level in range(3)),
    "hw.perflevel0.l2cachesize",
)
UNIT_BYTES = {"b": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30}


def parse_positive_int(value: object) -> int | None:
    """Parse a positive integer, also from "512 KiB" as py-cpuinfo writes some sizes."""
    if isinstance(value, int):
        return value if value > 0 else None
    if not isinstance(value, str):
        return None
    digits, _, unit = value.strip().lower().partition(" ")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    return int(digits) * UNIT_BYTES.get(unit, 0 if unit else 1) or None


def read_sysctl(unknown: dict[str, str]) -> dict[str, str]:
    """Return sysctl values by name, without the names this Mac lacks."""
    import subprocess

    try:
        process = subprocess.run(
            [SYSCTL, *SYSCTL_NAMES],
            capture_output=True,
            check=False,  # sysctl exits with 1 if a name is unknown, and prints the others
            timeout=SYSCTL_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        unknown["performance_cores"] = unknown["efficiency_cores"] = f"sysctl failed: {error}"
        return {}
    lines = process.stdout.decode("utf-8", "replace").splitlines()
    split = (line.partition(": ") for line in lines)
    return {name: value.strip() for name, colon, value in split if colon}


def count_kinds(
    unknown: dict[str, str], sysctl: Mapping[str, str]
) -> tuple[int | None, int | None]:
    """Return the numbers of performance and other cores; level 0 is the fastest."""
    levels = [
        parse_positive_int(sysctl.get(f"hw.perflevel{level}.physicalcpu")) for level in range(3)
    ]
    if levels[0] is None:
        reason = "sysctl lists no kinds of cores" if sysctl else "it is read only on macOS"
        unknown.setdefault("performance_cores", reason)
        unknown.setdefault("efficiency_cores", reason)
        return None, None
    return levels[0], sum(count or 0 for count in levels[1:])
