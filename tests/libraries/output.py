"""What two programs printed, side by side: words the same, numbers as near as they must be."""

from __future__ import annotations

import re

CLOCK = re.compile(
    r"\d\d\d\d-\d\d-\d\d[ T_]\d\d[:-]\d\d[:-]\d\d[,.\d]*Z?"  # logs
    r"|in \d+\.\d+s|\d+\.\d+it/s|\d+\.\d+s/it|'\w+_(?:runtime|per_second)': '[^']*'"
    r"|0x[0-9a-f]+|\b\d+:\d+ SyncActivity"
)
"""Times, speeds and addresses."""

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)(?![\w.])")

SMALL = 0.05
"""Numbers nearer to zero than this are compared as if they were of this size, unless told else."""


def differences(ours: str, theirs: str, *, within: float, small: float = SMALL) -> list[str]:
    """Return the lines that differ by more than digits, as a diff does; numbers relatively."""
    found = []
    mine, expected = (CLOCK.sub("…", text).splitlines() for text in (ours, theirs))
    if len(mine) != len(expected):
        found.append(f"{len(mine)} lines instead of {len(expected)}")
    for line, other in zip(mine, expected, strict=False):
        if not _alike(line, other, within, small):
            found += [f"- {other}", f"+ {line}"]
    return found


def _alike(line: str, other: str, within: float, small: float) -> bool:
    if line == other:
        return True
    if NUMBER.sub("#", line) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
    return all(
        abs(float(one) - float(two)) <= within * max(abs(float(two)), small) for one, two in pairs
    )
