"""Clocks, from cpufreq or else from /proc/cpuinfo."""

from __future__ import annotations

import pytest

from cputrain.machine.frequency import Frequency, read_frequency
from tests.machine.trees import CPU, Files, Tree


def read(files: Files, cpus: int = 2) -> Frequency:
    """The clocks of a machine of two CPUs."""
    return read_frequency(Tree(files), tuple(range(cpus)))


def test_cpufreq_tells_all_three() -> None:
    """The mean now, the highest ever, and what steers."""
    files: Files = {}
    for cpu, (now, most) in enumerate([(2_000_000, 3_000_000), (1_000_000, 4_000_000)]):
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq"] = f"{now}\n"
        files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{most}\n"
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_governor"] = "powersave\n"
    assert read(files) == Frequency(
        current_hz=1_500_000_000, max_hz=4_000_000_000, governor="powersave"
    )


def test_governors_that_differ_are_both_named() -> None:
    """In the order of CPUs."""
    files: Files = {
        f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": f"{name}\n"
        for cpu, name in enumerate(["schedutil", "performance"])
    }
    assert read(files).governor == "schedutil and performance"


@pytest.mark.parametrize(
    ("line", "hertz"),
    [
        ("cpu MHz\t\t: 2593.904", 2_593_904_000),
        ("clock\t\t: 3550.000000MHz", 3_550_000_000),
        ("cpu MHz dynamic : 5208", 5_208_000_000),
        ("CPU MHz : 2500.00", 2_500_000_000),
        ("cpu MHz : unknown", None),
        ("cpu MHz : ", None),
        ("cpu MHz : ²", None),
        ("BogoMIPS : 38.40", None),
    ],
)
def test_cpuinfo_tells_the_clock_in_several_ways(line: str, hertz: int | None) -> None:
    """x86, POWER, s390, LoongArch, and those that do not tell."""
    assert read({"/proc/cpuinfo": f"processor : 0\n{line}\n"}).current_hz == hertz


def test_nothing_is_known_where_a_hypervisor_keeps_it() -> None:
    """None, not nought."""
    assert read({}) == Frequency(current_hz=None, max_hz=None, governor=None)
