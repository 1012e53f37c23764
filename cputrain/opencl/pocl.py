"""Make pip's PoCL compile on processors that are newer than its LLVM.

Its LLVM calls an x86 processor that it does not know "generic", and then refuses that name: every
program fails, on Zen 5 for example (github.com/pocl/pocl/issues/1049). A device keeps the name in a
C structure, where we put the name of the closest processor that LLVM knows; nothing else of the
driver is changed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLATFORM = "Portable Computing Language"
"""Name of PoCL's OpenCL platform."""

UNKNOWN_PROCESSOR = b"generic\0"
"""Name that LLVM gives to processors that it does not know, as a C string."""

STRUCTURE_BYTES = 4096
"""Bytes searched for the name; a device's structure is about a third of it."""

PROCESSORS = (
    (b"skylake-avx512", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    (b"haswell", frozenset({"avx2", "bmi1", "bmi2", "fma", "f16c", "movbe", "abm"})),
    (b"x86-64", frozenset[str]()),
)
"""LLVM's processor names and the CPU flags that each requires, the best first."""

_names: list[Any] = []
"""Strings that the drivers' structures point to: they must live as long as the process."""


def name_processor(device: Any, flags: frozenset[str] | None = None) -> bytes | None:
    """Set the processor of a PoCL device that its compiler does not know.

    Args:
        device: A `pyopencl.Device`.
        flags: CPU flags; read from /proc/cpuinfo by default.

    Returns:
        The processor's name, or None if nothing had to be, or could be, changed.
    """
    if device.platform.name != PLATFORM or not device.version.endswith("-generic"):
        return None
    if platform.machine() != "x86_64" or not os.path.exists("/proc/self/mem"):
        return None
    address = address_of_name(int(device.int_ptr), UNKNOWN_PROCESSOR)
    if address is None:
        return None
    cpu_flags = _flags() if flags is None else flags
    name = next(name for name, required in PROCESSORS if required <= cpu_flags)
    _names.append(ctypes.create_string_buffer(name))
    ctypes.c_void_p.from_address(address).value = ctypes.addressof(_names[-1])
    return name


def address_of_name(structure: int, name: bytes) -> int | None:
    """Return the address of the pointer to `name` in a C structure; None where it has none."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)  # reports bad addresses, no crash

    def read(address: int, size: int) -> bytes:
        try:
            return os.pread(memory, size, address)
        except (OSError, OverflowError):
            return b""

    try:
        data = read(structure, STRUCTURE_BYTES)
        for (pointer,), offset in zip(
            struct.iter_unpack("P", data), range(0, len(data), 8), strict=True
        ):
            if pointer and read(pointer, len(name)) == name:
                return structure + offset
    finally:
        os.close(memory)
    return None


def _flags() -> frozenset[str]:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            key, _, words = line.partition(":")
            if key.strip() == "flags":
                return frozenset(words.split())
    return frozenset()
