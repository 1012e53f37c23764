"""Formatting of rates, and of fractions of a roof and of a step, which never exceed 100 %."""

from __future__ import annotations

import re

NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

PERCENT = re.compile(rf"{NUMBER} ?%")

RATE_OF_ROOF = re.compile(
    rf"{NUMBER} (?:G?FLOP/s of|G?B/s, where this memory has) {NUMBER}(?! ?[kMT]?(?:FLOP|B)/s)"
)
"""A rate and its roof in evidence of cputrain versions that did not mark rough roofs."""

AT_ROOF = 0.995
"""Fraction of a roof above which an operator counts as at the roof."""


def rate(per_second: float, unit: str) -> str:
    """Format a rate with an SI prefix and three significant digits: 12.3 GFLOP/s."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}"
    return f"{per_second:.3g} {unit}"


def of_roof(per_second: float, highest: float, unit: str) -> str:
    """Format a rate with its roof, "12.3 GFLOP/s of 78.9 GFLOP/s", or the roof if it is reached."""
    if per_second >= AT_ROOF * highest:
        return f"the roof of {rate(highest, unit)}"
    return f"{rate(per_second, unit)} of {rate(highest, unit)}"


def share_of_roof(share: float) -> str:
    """Format a fraction of a roof: "45%", or "at the roof"."""
    return "at the roof" if share >= AT_ROOF else f"{share:.0%}"


def part_of(seconds: float, total_s: float) -> str:
    """Format a fraction of a step in percent, at most 100 %."""
    return f"{min(1.0, seconds / total_s):.0%}"


def is_possible(text: str) -> bool:
    """Return whether a text has no percentage outside 0 to 100 and no rate above its roof."""
    return all(0 <= float(match[1]) <= 100 for match in PERCENT.finditer(text)) and all(
        float(match[1]) <= float(match[2]) for match in RATE_OF_ROOF.finditer(text)
    )
