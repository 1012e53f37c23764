"""What can be said of a machine without sysfs: macOS, Windows, the BSDs.

psutil counts, py-cpuinfo names, macOS's sysctl tells the kinds of cores apart. Each of them may be
missing or fail, and then the facts it would have given are None, with the reason in `unknown`.
"""

from __future__ import annotations

import os
import sys

from cputrain.machine.sysctl import count_kinds, read_sysctl, whole
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    Answer = TypeVar("Answer")

_cpuinfo_answer: tuple[dict[str, Any], str | None] | None = None
"""What py-cpuinfo said, and why it said nothing; asked once, because it sleeps and spawns."""


class PortableFacts(Record):
    """A machine, as far as portable means tell."""

    system: str
    """sys.platform: "darwin", "win32", "freebsd14"."""

    architecture: str | None
    """What Python was built for: "arm64", "AMD64"; under Rosetta that is not the chip's."""

    vendor: str | None
    """"GenuineIntel", "AuthenticAMD", "Apple"."""

    family: int | None
    """x86 family."""

    model: int | None
    """x86 model."""

    model_name: str | None
    """The name it is sold under: "Apple M3 Max"."""

    isa: tuple[str, ...]
    """Raw flags: py-cpuinfo's ("avx2"), or on Apple's chips sysctl's ("FEAT_BF16")."""

    logical: int
    """Logical CPUs; at least 1."""

    physical: int | None
    """Physical cores."""

    performance_cores: int | None
    """Physical cores of the fastest kind."""

    efficiency_cores: int | None
    """Physical cores of every slower kind: also an M5's, which Apple calls performance cores."""

    memory_bytes: int | None
    """The whole memory."""

    available_memory_bytes: int | None
    """What can be had without swapping."""

    affinity: tuple[int, ...] | None
    """The logical CPUs this process may run on."""

    frequency_hz: int | None
    """The clock now."""

    max_frequency_hz: int | None
    """The highest clock."""

    l2_bytes: int | None
    """The second cache: of one core or of several that share it, as the system counts."""

    l3_bytes: int | None
    """The third cache."""

    unknown: dict[str, str]
    """What could not be known, and why."""


def read_portable(*, names: bool = True) -> PortableFacts:
    """This machine, by means that exist everywhere.

    Names and instruction sets take seconds the first time; a launch does without.
    """
    unknown: dict[str, str] = {}
    sysctl = read_sysctl(unknown) if sys.platform == "darwin" else {}
    counted = _counted(unknown)
    named = _named(unknown, sysctl, ask=names)
    performance, efficiency = count_kinds(unknown, sysctl)
    found: dict[str, Any] = {
        "architecture": _asked(unknown, "architecture", _architecture),
        **named,
        "physical": counted["physical"] or whole(sysctl.get("hw.physicalcpu")),
        "performance_cores": performance,
        "efficiency_cores": efficiency,
        "memory_bytes": counted["memory_bytes"] or whole(sysctl.get("hw.memsize")),
        "available_memory_bytes": counted["available_memory_bytes"],
        "affinity": counted["affinity"],
        "frequency_hz": counted["frequency_hz"],
        "max_frequency_hz": counted["max_frequency_hz"],
    }
    for name, value in found.items():
        if value is None or value == ():
            unknown.setdefault(name, f"nothing on {sys.platform} tells it")
        else:
            unknown.pop(name, None)  # one way failed, another answered
    logical = counted["logical"] or whole(sysctl.get("hw.logicalcpu")) or os.cpu_count()
    if logical is None:
        unknown["logical"] = "os.cpu_count() does not know it either; 1 is certain"
    else:
        unknown.pop("logical", None)
    return PortableFacts(system=sys.platform, logical=logical or 1, unknown=unknown, **found)


def _asked(
    unknown: dict[str, str], name: str, question: Callable[[], Answer | None]
) -> Answer | None:
    """The answer; or None and the reason under that name."""
    try:
        return question()
    # psutil raises its own errors, OSError, NotImplementedError, RuntimeError or AttributeError,
    # differently on each system and in each release; a fact that is missing must not end a launch.
    except Exception as error:
        unknown[name] = f"{type(error).__name__}: {error}"
        return None


def _architecture() -> str | None:
    import platform

    return platform.machine() or None


def _counted(unknown: dict[str, str]) -> dict[str, Any]:
    """What psutil counts."""
    names = ("logical", "physical", "memory_bytes", "available_memory_bytes")
    clocks = ("frequency_hz", "max_frequency_hz")
    counted: dict[str, Any] = dict.fromkeys((*names, *clocks, "affinity"))
    psutil = _psutil()
    if isinstance(psutil, str):
        unknown.update(dict.fromkeys((*names, *clocks), psutil))
    else:
        counted["logical"] = _asked(unknown, "logical", psutil.cpu_count)
        counted["physical"] = _asked(unknown, "physical", lambda: psutil.cpu_count(logical=False))
        memory = _asked(unknown, "memory_bytes", psutil.virtual_memory)
        if memory is None:
            unknown["available_memory_bytes"] = unknown.get("memory_bytes", "psutil gives none")
        else:
            counted["memory_bytes"] = whole(memory.total)
            counted["available_memory_bytes"] = whole(memory.available)
        clock = _asked(unknown, "frequency_hz", lambda: psutil.cpu_freq())
        if clock is None:
            reason = unknown.setdefault("frequency_hz", "psutil.cpu_freq() gives none")
            unknown["max_frequency_hz"] = reason
        else:
            counted["frequency_hz"] = _hertz(clock.current)
            counted["max_frequency_hz"] = _hertz(clock.max)
    counted["affinity"] = _affinity(unknown, psutil)
    return counted


def _psutil() -> Any:
    """The module, or the reason why it is not to be had."""
    try:
        import psutil
    except (ImportError, NotImplementedError) as error:  # the latter on systems it does not know
        return f"psutil cannot be imported: {error}"
    return psutil


def _hertz(megahertz: float) -> int | None:
    return int(megahertz * 1e6) if megahertz and megahertz > 0 else None


def _affinity(unknown: dict[str, str], psutil: Any) -> tuple[int, ...] | None:
    if hasattr(os, "sched_getaffinity"):
        allowed = _asked(unknown, "affinity", lambda: os.sched_getaffinity(0))
    elif isinstance(psutil, str):
        unknown["affinity"] = psutil
        return None
    elif hasattr(psutil.Process, "cpu_affinity"):
        allowed = _asked(unknown, "affinity", lambda: set(psutil.Process().cpu_affinity()))
    else:
        unknown["affinity"] = f"{sys.platform} binds no process to CPUs"
        return None
    return tuple(sorted(allowed)) if allowed else None


def _cpuinfo() -> tuple[dict[str, Any], str | None]:
    """py-cpuinfo's answer, and the reason where it gave none."""
    global _cpuinfo_answer
    if _cpuinfo_answer is None:
        try:
            import cpuinfo
        except ImportError as error:
            _cpuinfo_answer = {}, f"py-cpuinfo cannot be imported: {error}"
            return _cpuinfo_answer
        try:
            found = cpuinfo.get_cpu_info()
        # On a platform it does not know py-cpuinfo raises Exception itself, no class of its own;
        # it also parses the output of a second interpreter, which may say anything.
        except Exception as error:
            _cpuinfo_answer = {}, f"py-cpuinfo gave up: {error}"
        else:
            # where that second interpreter fails, its answer is an empty dict and no error
            reason = None if found else "py-cpuinfo answered nothing"
            _cpuinfo_answer = dict(found or {}), reason
    return _cpuinfo_answer


def _named(unknown: dict[str, str], sysctl: Mapping[str, str], *, ask: bool) -> dict[str, Any]:
    """What py-cpuinfo names, with sysctl's word first where both have one."""
    found, reason = _cpuinfo() if ask else ({}, "it was not asked for")
    model_name = sysctl.get("machdep.cpu.brand_string") or found.get("brand_raw") or None
    vendor = found.get("vendor_id_raw") or None
    if vendor is None and str(model_name).startswith("Apple "):
        vendor = "Apple"  # their chips name no vendor
    flags = found.get("flags") or (
        name.removeprefix("hw.optional.").removeprefix("arm.")
        for name, value in sysctl.items()
        if name.startswith("hw.optional.") and value == "1"
    )
    # hw.l2cachesize is that of the efficiency cores on Apple's chips
    l2 = sysctl.get("hw.perflevel0.l2cachesize") or sysctl.get("hw.l2cachesize")
    named = {
        "vendor": vendor,
        "family": whole(found.get("family")),
        "model": whole(found.get("model")),
        "model_name": model_name,
        "isa": tuple(str(flag) for flag in flags),
        "l2_bytes": whole(l2) or whole(found.get("l2_cache_size")),
        "l3_bytes": whole(sysctl.get("hw.l3cachesize")) or whole(found.get("l3_cache_size")),
    }
    if reason is not None:
        unknown.update({name: reason for name, value in named.items() if value in (None, ())})
    return named
