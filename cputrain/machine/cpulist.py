"""Sets of logical CPUs as the kernel writes them: lists ("0-3,8") and masks ("00000000,0000010f")."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_list(text: str) -> tuple[int, ...]:
    """Numbers of a list such as "0-3,8,10-14:2", sorted; ValueError for anything else."""
    found: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        part = part.strip()
        if not part:
            continue
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        low, high = int(first), int(last if dash else first)
        if high < low or low < 0:
            raise ValueError(f"{part!r} runs backwards")
        found.update(range(low, high + 1, int(step) if step else 1))
    return tuple(sorted(found))


def parse_mask(text: str) -> tuple[int, ...]:
    """Numbers of a mask such as "00000000,00000202": 32 bits a group, the highest group first."""
    bits = int(text.replace(",", "").strip() or "0", 16)
    return tuple(index for index in range(bits.bit_length()) if bits >> index & 1)


def format_list(cpus: Iterable[int]) -> str:
    """The shortest list of these numbers: (0, 1, 2, 3, 8) gives "0-3,8"."""
    spans: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
