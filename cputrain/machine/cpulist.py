"""Sets of logical CPUs as the kernel writes them: lists ("0-3,8") and masks ("0000010f")."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CPUS = 1 << 20
"""Upper bound of CPU numbers; a larger number means a damaged file."""


def parse_list(text: str) -> tuple[int, ...]:
    """Parse a list such as "0-3,8,10-14:2" into sorted numbers; raise ValueError if invalid."""
    cpus: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        part = part.strip()
        if not part:
            continue
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        low, high, stride = int(first), int(last if dash else first), int(step or 1)
        if not 0 <= low <= high or stride < 1:
            raise ValueError(f"{part!r} is not an ascending range")
        if high >= MAX_CPUS:
            raise ValueError(f"{part!r} has a CPU number above {MAX_CPUS - 1}")
        cpus.update(range(low, high + 1, stride))
    return tuple(sorted(cpus))


def parse_mask(text: str) -> tuple[int, ...]:
    """Parse a mask such as "00000000,00000202": groups of 32 bits, the highest group first."""
    bits = int(text.replace(",", "").strip() or "0", 16)
    if bits < 0 or bits.bit_length() > MAX_CPUS:
        raise ValueError(f"a mask must have 0 to {MAX_CPUS} bits")
    digits = f"{bits:b}"[::-1]
    cpus = []
    index = digits.find("1")
    while index >= 0:  # masks are long and mostly empty, so jump from set bit to set bit
        cpus.append(index)
        index = digits.find("1", index + 1)
    return tuple(cpus)


def format_list(cpus: Iterable[int]) -> str:
    """Return the shortest list of CPU numbers: (0, 1, 2, 3, 8) gives "0-3,8"."""
    spans: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
