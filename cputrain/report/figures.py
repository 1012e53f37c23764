"""Figures as people read them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.seen import Seen

NOTHING = "Nothing worth doing was found: no cause costs 5 % of a step."

RESTLESS = 0.3
"""How far apart steps are, and how many CPUs others have, from which on that is said."""


def milliseconds(seconds: float) -> str:
    """Three digits; nothing for no time."""
    return f"{seconds * 1e3:.3g} ms" if seconds else ""


def rate(per_second: float, unit: str) -> str:
    """With the prefix that leaves few digits: 12.3 GFLOP/s."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}"
    return f"{per_second:.3g} {unit}"


def shapes(of: Iterable[tuple[int, ...]]) -> str:
    """Forms of tensors: 8x3x224x224 8."""
    return " ".join("x".join(map(str, shape)) or "·" for shape in of)


def reached(found: Diagnosis) -> str:
    """What the script computes in a second, beside what the CPU can."""
    seen, roof = found.seen, found.roof
    flops = sum(one.flops for one in seen.operators)
    speed, most = flops / seen.step, roof.flops("float32", seen.threads)
    return f"{speed / 1e9:.3g} GFLOP/s of {most / 1e9:.3g} in float32 ({speed / most:.0%})"


def option(name: str, value: str) -> str:
    """A setting as a user types it."""
    return f"--{name.replace('_', '-')} {value}"


def doubts(seen: Seen) -> str:
    """Why figures are rough, where they are."""
    if seen.spread > RESTLESS or (seen.others > RESTLESS and not seen.loaders):
        return "Something else ran meanwhile, or steps differ: figures are rough."
    return ""
