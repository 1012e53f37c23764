"""Rates as people read them, never above the roof that they are held against."""

from __future__ import annotations

import re

NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

PERCENT = re.compile(rf"{NUMBER} ?%")

BESIDE = re.compile(
    rf"{NUMBER} (?:G?FLOP/s of|G?B/s, where this memory has) {NUMBER}(?! ?[kMT]?(?:FLOP|B)/s)"
)
"""A rate beside its roof, as evidence had it before roofs were marked as rough."""

NEAR = 0.995
"""Part of a roof from which on an operator is at it."""


def rate(per_second: float, unit: str) -> str:
    """Return a rate with the prefix that leaves few digits: 12.3 GFLOP/s."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}"
    return f"{per_second:.3g} {unit}"


def of_roof(per_second: float, highest: float, unit: str) -> str:
    """Return a rate beside its roof: "12.3 GFLOP/s of 78.9 GFLOP/s"; what is there is at it."""
    if per_second >= NEAR * highest:
        return f"the roof of {rate(highest, unit)}"
    return f"{rate(per_second, unit)} of {rate(highest, unit)}"


def share_of_roof(share: float) -> str:
    """Return a part of a roof: "45%", or "at the roof"."""
    return "at the roof" if share >= NEAR else f"{share:.0%}"


def part_of(seconds: float, whole: float) -> str:
    """Return a part of a step in percent, which is never more than all of it."""
    return f"{min(1.0, seconds / whole):.0%}"


def is_possible(text: str) -> bool:
    """Return whether a sentence of a finding has no part above all and no rate above its roof."""
    return all(0 <= float(match[1]) <= 100 for match in PERCENT.finditer(text)) and all(
        float(match[1]) <= float(match[2]) for match in BESIDE.finditer(text)
    )
