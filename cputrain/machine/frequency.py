"""Clock frequencies of the CPUs, and the cpufreq governor."""

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
    """Frequencies in hertz; None if the kernel or a hypervisor does not report them."""

    current_hz: int | None
    """Mean frequency of all CPUs when it was read."""

    max_hz: int | None
    """Highest frequency of any core."""

    governor: str | None
    """cpufreq governor: "performance", "powersave", "schedutil", …"""


CLOCK_KEYS = ("cpu mhz", "clock", "cpu mhz dynamic")
"""Keys of the clock in /proc/cpuinfo on x86 and LoongArch, POWER ("3000.000000MHz") and s390."""


def clock_of(block: Mapping[str, str]) -> int | None:
    """Return the clock in hertz from a paragraph of /proc/cpuinfo; None if absent."""
    megahertz = next((block[name] for name in CLOCK_KEYS if name in block), "").removesuffix("MHz")
    return round(float(megahertz) * 1e6) if megahertz.replace(".", "", 1).isdecimal() else None


def read_frequency(source: Source, online: Cpus) -> Frequency:
    """Read frequencies from cpufreq; read the current one from /proc/cpuinfo without cpufreq."""
    folders = [f"{CPU_FOLDER}/cpu{cpu}/cpufreq" for cpu in online]
    current_clocks_hz = [
        value * 1000
        for folder in folders
        if (value := number(source, f"{folder}/scaling_cur_freq")) is not None
    ]
    if not current_clocks_hz:
        blocks = parse_blocks(text(source, "/proc/cpuinfo", 1 << 24) or "")
        current_clocks_hz = [clock for block in blocks if (clock := clock_of(block)) is not None]
    max_clocks_hz = [
        value * 1000
        for folder in folders
        if (value := number(source, f"{folder}/cpuinfo_max_freq")) is not None
    ]
    governors = dict.fromkeys(
        word for folder in folders if (word := text(source, f"{folder}/scaling_governor"))
    )
    return Frequency(
        current_hz=sum(current_clocks_hz) // len(current_clocks_hz) if current_clocks_hz else None,
        max_hz=max(max_clocks_hz, default=None),
        governor=" and ".join(governors) or None,
    )
