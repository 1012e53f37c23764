"""Hardware facts on systems without sysfs: macOS, Windows and the BSDs.

psutil gives counts and sizes, py-cpuinfo the name and instruction sets, macOS's sysctl the kinds of
cores. Each may be absent or fail; the facts it provides are then None, with the reason in
`unknown`.
"""

from __future__ import annotations

import os
import sys

from cputrain.machine.sysctl import count_kinds, parse_positive_int, read_sysctl
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

_cached_cpuinfo: tuple[dict[str, Any], str | None] | None = None
"""py-cpuinfo's result, and the reason if it is empty; cached, as py-cpuinfo is slow."""


class PortableFacts(Record):
    """Facts from psutil, py-cpuinfo and sysctl; None if unknown."""

    system: str
    """sys.platform: "darwin", "win32", "freebsd14"."""

    architecture: str | None
    """Architecture of the Python build: "arm64", "AMD64"; under Rosetta not the chip's."""

    vendor: str | None
    """"GenuineIntel", "AuthenticAMD", "Apple"."""

    family: int | None
    """x86 family."""

    model: int | None
    """x86 model."""

    model_name: str | None
    """Marketing name of the CPU: "Apple M3 Max"."""

    isa: tuple[str, ...]
    """CPU flags from py-cpuinfo ("avx2"), or from sysctl on Apple's chips ("FEAT_BF16")."""

    logical: int
    """Logical CPUs; at least 1."""

    physical: int | None
    """Physical cores."""

    performance_cores: int | None
    """Physical cores of the fastest kind."""

    efficiency_cores: int | None
    """Physical cores of all slower kinds, including the M5's that Apple calls performance cores."""

    memory_bytes: int | None
    """Total memory."""

    available_memory_bytes: int | None
    """Memory available without swapping."""

    affinity: tuple[int, ...] | None
    """Logical CPUs this process may run on."""

    frequency_hz: int | None
    """Current clock frequency."""

    max_frequency_hz: int | None
    """Highest clock frequency."""

    l2_bytes: int | None
    """Size of a level-2 cache, of one core or of cores that share it, as the system reports it."""

    l3_bytes: int | None
    """Size of a level-3 cache."""

    unknown: dict[str, str]
    """Reason for each fact that is unknown, by the fact's name."""


def read_portable(*, names: bool = True) -> PortableFacts:
    """Read the facts of this machine.

    Args:
        names: Whether to call py-cpuinfo for names and instruction sets, which takes seconds the
            first time.
    """
    unknown: dict[str, str] = {}
    sysctl = read_sysctl(unknown) if sys.platform == "darwin" else {}
    psutil_facts = _read_psutil(unknown)
    cpuinfo_facts = _read_cpuinfo(unknown, sysctl, enabled=names)
    performance, efficiency = count_kinds(unknown, sysctl)
    facts: dict[str, Any] = {
        "architecture": _call_or_reason(unknown, "architecture", _architecture),
        **cpuinfo_facts,
        "physical": psutil_facts["physical"] or parse_positive_int(sysctl.get("hw.physicalcpu")),
        "performance_cores": performance,
        "efficiency_cores": efficiency,
        "memory_bytes": psutil_facts["memory_bytes"]
        or parse_positive_int(sysctl.get("hw.memsize")),
        "available_memory_bytes": psutil_facts["available_memory_bytes"],
        "affinity": psutil_facts["affinity"],
        "frequency_hz": psutil_facts["frequency_hz"],
        "max_frequency_hz": psutil_facts["max_frequency_hz"],
    }
    for name, value in facts.items():
        if value is None or value == ():
            unknown.setdefault(name, f"no source for it on {sys.platform}")
        else:
            unknown.pop(name, None)  # one source failed, another succeeded
    logical = (
        psutil_facts["logical"] or parse_positive_int(sysctl.get("hw.logicalcpu")) or os.cpu_count()
    )
    if logical is None:
        unknown["logical"] = "os.cpu_count() does not know it; 1 is assumed"
    else:
        unknown.pop("logical", None)
    return PortableFacts(system=sys.platform, logical=logical or 1, unknown=unknown, **facts)


def _call_or_reason(
    unknown: dict[str, str], name: str, function: Callable[[], T | None]
) -> T | None:
    """Return the result of `function`; on an exception return None and note it in `unknown`."""
    try:
        return function()
    # psutil raises its own errors, OSError, NotImplementedError, RuntimeError or AttributeError,
    # depending on the system and release; an unknown fact must not end a launch.
    except Exception as error:
        unknown[name] = f"{type(error).__name__}: {error}"
        return None


def _architecture() -> str | None:
    import platform

    return platform.machine() or None


def _read_psutil(unknown: dict[str, str]) -> dict[str, Any]:
    """Return counts, sizes, clocks and affinity from psutil."""
    names = ("logical", "physical", "memory_bytes", "available_memory_bytes")
    clocks = ("frequency_hz", "max_frequency_hz")
    facts: dict[str, Any] = dict.fromkeys((*names, *clocks, "affinity"))
    psutil = _psutil()
    if isinstance(psutil, str):
        unknown.update(dict.fromkeys((*names, *clocks), psutil))
    else:
        facts["logical"] = _call_or_reason(unknown, "logical", psutil.cpu_count)
        facts["physical"] = _call_or_reason(
            unknown, "physical", lambda: psutil.cpu_count(logical=False)
        )
        memory = _call_or_reason(unknown, "memory_bytes", psutil.virtual_memory)
        if memory is None:
            unknown["available_memory_bytes"] = unknown.get("memory_bytes", "psutil returns none")
        else:
            facts["memory_bytes"] = parse_positive_int(memory.total)
            facts["available_memory_bytes"] = parse_positive_int(memory.available)
        clock = _call_or_reason(unknown, "frequency_hz", lambda: psutil.cpu_freq())
        if clock is None:
            reason = unknown.setdefault("frequency_hz", "psutil.cpu_freq() returns none")
            unknown["max_frequency_hz"] = reason
        else:
            facts["frequency_hz"] = _hertz(clock.current)
            facts["max_frequency_hz"] = _hertz(clock.max)
    facts["affinity"] = _affinity(unknown, psutil)
    return facts


def _psutil() -> Any:
    """Return the psutil module, or the reason why it cannot be imported."""
    try:
        import psutil
    except (ImportError, NotImplementedError) as error:  # the latter on unsupported systems
        return f"psutil cannot be imported: {error}"
    return psutil


def _hertz(megahertz: float) -> int | None:
    return int(megahertz * 1e6) if megahertz and megahertz > 0 else None


def _affinity(unknown: dict[str, str], psutil: Any) -> tuple[int, ...] | None:
    if hasattr(os, "sched_getaffinity"):
        allowed = _call_or_reason(unknown, "affinity", lambda: os.sched_getaffinity(0))
    elif isinstance(psutil, str):
        unknown["affinity"] = psutil
        return None
    elif hasattr(psutil.Process, "cpu_affinity"):
        allowed = _call_or_reason(unknown, "affinity", lambda: set(psutil.Process().cpu_affinity()))
    else:
        unknown["affinity"] = f"{sys.platform} does not bind processes to CPUs"
        return None
    return tuple(sorted(allowed)) if allowed else None


def _cpuinfo() -> tuple[dict[str, Any], str | None]:
    """Return py-cpuinfo's result, and the reason if it is empty."""
    global _cached_cpuinfo
    if _cached_cpuinfo is None:
        try:
            import cpuinfo
        except ImportError as error:
            _cached_cpuinfo = {}, f"py-cpuinfo cannot be imported: {error}"
            return _cached_cpuinfo
        try:
            cpuinfo_facts = cpuinfo.get_cpu_info()
        # py-cpuinfo raises a bare Exception on unsupported platforms. It also parses the output of
        # a second interpreter, which may be anything.
        except Exception as error:
            _cached_cpuinfo = {}, f"py-cpuinfo failed: {error}"
        else:
            # If that second interpreter fails, the result is an empty dict without an error.
            reason = None if cpuinfo_facts else "py-cpuinfo returned nothing"
            _cached_cpuinfo = dict(cpuinfo_facts or {}), reason
    return _cached_cpuinfo


def _read_cpuinfo(
    unknown: dict[str, str], sysctl: Mapping[str, str], *, enabled: bool
) -> dict[str, Any]:
    """Return names, flags and cache sizes from py-cpuinfo; sysctl's values take precedence."""
    cpuinfo, reason = _cpuinfo() if enabled else ({}, "it was not requested")
    model_name = sysctl.get("machdep.cpu.brand_string") or cpuinfo.get("brand_raw") or None
    vendor = cpuinfo.get("vendor_id_raw") or None
    if vendor is None and str(model_name).startswith("Apple "):
        vendor = "Apple"  # Apple's chips report no vendor
    flags = cpuinfo.get("flags") or (
        name.removeprefix("hw.optional.").removeprefix("arm.")
        for name, value in sysctl.items()
        if name.startswith("hw.optional.") and value == "1"
    )
    # On Apple's chips hw.l2cachesize is the size of the efficiency cores' cache.
    l2 = sysctl.get("hw.perflevel0.l2cachesize") or sysctl.get("hw.l2cachesize")
    facts = {
        "vendor": vendor,
        "family": parse_positive_int(cpuinfo.get("family")),
        "model": parse_positive_int(cpuinfo.get("model")),
        "model_name": model_name,
        "isa": tuple(str(flag) for flag in flags),
        "l2_bytes": parse_positive_int(l2) or parse_positive_int(cpuinfo.get("l2_cache_size")),
        "l3_bytes": parse_positive_int(sysctl.get("hw.l3cachesize"))
        or parse_positive_int(cpuinfo.get("l3_cache_size")),
    }
    if reason is not None:
        unknown.update({name: reason for name, value in facts.items() if value in (None, ())})
    return facts
