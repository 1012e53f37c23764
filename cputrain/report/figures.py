"""Figures as people read them."""

from __future__ import annotations

from cputrain.diagnose.rates import of_roof, part_of, rate, share_of_roof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.seen import Operator, Seen

NOTHING = "Nothing worth doing was found: no cause costs 5 % of a step."

LEVELS = {"computing": "computing", "l2": "L2", "l3": "L3", "memory": "memory"}
"""What an operator may be bound by."""


def milliseconds(seconds: float) -> str:
    """Return a time with three digits; nothing for no time."""
    return f"{seconds * 1e3:.3g} ms" if seconds else ""


def shapes(of: Iterable[tuple[int, ...]]) -> str:
    """Return shapes of tensors: 8x3x224x224 8."""
    return " ".join("x".join(map(str, shape)) or "·" for shape in of)


def reached(found: Diagnosis) -> str:
    """Return what the script computes in a second, beside what the CPU can."""
    seen, roof = found.seen, found.roof
    counted = [operator for operator in seen.operators if operator.flops]
    if not counted:
        return "no operator whose operations are counted"
    flops = sum(operator.flops for operator in counted)
    least = sum(
        operator.flops / roof.highest_flops(operator.computes, seen.threads) for operator in counted
    )
    if least <= 0:
        return "no operator whose operations are counted"
    types = {operator.computes for operator in counted}
    said = of_roof(flops / seen.whole, flops / least, "FLOP/s")
    share = share_of_roof(least / seen.whole)
    said += f" in {types.pop()}" if len(types) == 1 else " in the types of its operators"
    said += f" ({share})" if share.endswith("%") else ""
    return said + (", rough" if found.rough else "")


def operator_share(operator: Operator, roof: Roof, threads: int) -> str:
    """Return how near an operator is to what binds it: "45% (L3)", "at the roof (computing)"."""
    least, bound = roof.least_seconds(operator, threads)
    if not least or not operator.seconds:
        return ""
    return f"{share_of_roof(least / operator.seconds)} ({LEVELS[bound]})"


def option(name: str, value: str) -> str:
    """Return a setting as a user types it."""
    return f"--{name.replace('_', '-')} {value}"


def spread(seen: Seen) -> str:
    """Return how far apart steps were."""
    if seen.spread >= 1:
        return "half of them further apart than a step takes"
    return f"half of them within {seen.spread:.0%}"


def doubts(found: Diagnosis) -> str:
    """Return why figures are rough, where they are."""
    return f"Figures are rough: {'; '.join(found.rough)}." if found.rough else ""


__all__ = [
    "LEVELS", "NOTHING", "doubts", "milliseconds", "operator_share", "option", "part_of", "rate",
    "reached", "shapes", "spread",
]  # fmt: skip
