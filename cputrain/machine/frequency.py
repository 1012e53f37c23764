"""Clock frequencies and the governor that moves them."""

from __future__ import annotations

from cputrain.machine.cpuinfo import parse_blocks
from cputrain.machine.source import number, text
from cputrain.machine.topology import CPU_FOLDER, Cpus
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.machine.source import Source


class Frequency(Record):
    """Frequencies in hertz; None where the kernel or a hypervisor keeps them to itself."""

    current_hz: int | None
    """The mean over all CPUs at the time of asking."""

    max_hz: int | None
    """The highest any core may reach."""

    governor: str | None
    """What steers it: "performance", "powersave", "schedutil", …"""


CLOCKS = ("cpu mhz", "clock", "cpu mhz dynamic")
"""How /proc/cpuinfo calls it on x86 and LoongArch, on POWER ("3000.000000MHz") and on s390."""


def clock_of(block: Mapping[str, str]) -> int | None:
    """Hertz in a paragraph of /proc/cpuinfo."""
    found = next((block[name] for name in CLOCKS if name in block), "").removesuffix("MHz")
    return round(float(found) * 1e6) if found.replace(".", "", 1).isdecimal() else None


def read_frequency(source: Source, online: Cpus) -> Frequency:
    """Frequencies from cpufreq, the current one else from /proc/cpuinfo."""
    folders = [f"{CPU_FOLDER}/cpu{cpu}/cpufreq" for cpu in online]
    current = [
        value * 1000
        for folder in folders
        if (value := number(source, f"{folder}/scaling_cur_freq")) is not None
    ]
    if not current:
        blocks = parse_blocks(text(source, "/proc/cpuinfo", 1 << 24) or "")
        current = [clock for block in blocks if (clock := clock_of(block)) is not None]
    highest = [
        value * 1000
        for folder in folders
        if (value := number(source, f"{folder}/cpuinfo_max_freq")) is not None
    ]
    governors = dict.fromkeys(
        word for folder in folders if (word := text(source, f"{folder}/scaling_governor"))
    )
    return Frequency(
        current_hz=sum(current) // len(current) if current else None,
        max_hz=max(highest, default=None),
        governor=" and ".join(governors) or None,
    )
