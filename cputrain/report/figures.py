"""Formatting of numbers, shapes and settings, shared by terminal and page."""

from __future__ import annotations

from cputrain.diagnose.rates import of_roof, part_of, rate, share_of_roof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.step_profile import OperatorTime, StepProfile

NOTHING = "Nothing worth doing was found: no cause costs 5 % of a step."

LEVELS = {"computing": "computing", "l2": "L2", "l3": "L3", "memory": "memory"}
"""Display name of each bound of an operator: compute or a memory level."""


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three significant digits; empty for 0."""
    return f"{seconds * 1e3:.3g} ms" if seconds else ""


def shapes(of: Iterable[tuple[int, ...]]) -> str:
    """Format tensor shapes: 8x3x224x224 8."""
    return " ".join("x".join(map(str, shape)) or "·" for shape in of)


def reached(found: Diagnosis) -> str:
    """Return the script's FLOP/s beside the roof of its operators."""
    seen, roof = found.seen, found.roof
    counted = [operator for operator in seen.operators if operator.flops]
    if not counted:
        return "no operator whose operations are counted"
    flops = sum(operator.flops for operator in counted)
    least = sum(
        operator.flops / roof.highest_flops(operator.compute_dtype, seen.threads)
        for operator in counted
    )
    if least <= 0:
        return "no operator whose operations are counted"
    types = {operator.compute_dtype for operator in counted}
    said = of_roof(flops / seen.instrumented_step, flops / least, "FLOP/s")
    share = share_of_roof(least / seen.instrumented_step)
    said += f" in {types.pop()}" if len(types) == 1 else " in the types of its operators"
    said += f" ({share})" if share.endswith("%") else ""
    return said + (", rough" if found.rough else "")


def operator_share(operator: OperatorTime, roof: Roof, threads: int) -> str:
    """Return an operator's fraction of its roof, with the bound: "45% (L3)"."""
    least, bound = roof.least_seconds(operator, threads)
    if not least or not operator.seconds:
        return ""
    return f"{share_of_roof(least / operator.seconds)} ({LEVELS[bound]})"


def option(name: str, value: str) -> str:
    """Format a setting as a command-line option."""
    return f"--{name.replace('_', '-')} {value}"


def spread(seen: StepProfile) -> str:
    """Return the spread of step times in words."""
    if seen.spread >= 1:
        return "half of them further apart than a step takes"
    return f"half of them within {seen.spread:.0%}"


def doubts(found: Diagnosis) -> str:
    """Return why the figures are rough; empty if they are not."""
    return f"Figures are rough: {'; '.join(found.rough)}." if found.rough else ""


__all__ = [
    "LEVELS", "NOTHING", "doubts", "milliseconds", "operator_share", "option", "part_of", "rate",
    "reached", "shapes", "spread",
]  # fmt: skip
