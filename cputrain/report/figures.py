"""Formatting of numbers, shapes, settings and warnings, for the terminal and the page."""

from __future__ import annotations

from cputrain.diagnose.rates import of_roof, part_of, rate, share_of_roof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.step_profile import OperatorTime, StepProfile

LEVELS = {"computing": "computing", "l2": "L2", "l3": "L3", "memory": "memory"}
"""Display name of each bound of an operator: compute or a memory level."""


def no_finding(diagnosis: Diagnosis) -> str:
    """Return the sentence about a diagnosis without findings."""
    if diagnosis.rough:
        return "Nothing can be found in rough figures: stop other programs, and diagnose again."
    return "Nothing worth doing was found: no cause costs 5 % of a step."


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three significant digits; empty for 0."""
    return f"{seconds * 1e3:.3g} ms" if seconds else ""


def duration(seconds: float) -> str:
    """Format a duration in its largest unit: "40 s", "5 min", "1.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def shapes(tensor_shapes: Iterable[tuple[int, ...]]) -> str:
    """Format tensor shapes, "8x3x224x224 8"; a dot stands for a scalar."""
    return " ".join("x".join(map(str, shape)) or "·" for shape in tensor_shapes)


def reached(diagnosis: Diagnosis) -> str:
    """Return the script's FLOP/s and the roof of its operators."""
    seen, roof = diagnosis.seen, diagnosis.roof
    counted = [operator for operator in seen.operators if operator.flops]
    if not counted:
        return "no operator whose operations are counted"
    flops = sum(operator.flops for operator in counted)
    roof_s = roof.product_seconds(counted, seen.threads)
    if roof_s <= 0:
        return "no operator whose operations are counted"
    dtypes = {operator.compute_dtype for operator in counted}
    text = of_roof(flops / seen.instrumented_step, flops / roof_s, "FLOP/s")
    share = share_of_roof(roof_s / seen.instrumented_step)
    text += f" in {dtypes.pop()}" if len(dtypes) == 1 else " in the dtypes of its operators"
    text += f" ({share})" if share.endswith("%") else ""
    return text + (", rough" if diagnosis.rough else "")


def operator_share(operator: OperatorTime, roof: Roof, threads: int) -> str:
    """Return an operator's fraction of its roof, with the bound: "45% (L3)"."""
    roof_s, bound = roof.least_seconds(operator, threads)
    if not roof_s or not operator.seconds:
        return ""
    return f"{share_of_roof(roof_s / operator.seconds)} ({LEVELS[bound]})"


def option(name: str, value: str) -> str:
    """Format a setting as a command-line option."""
    return f"--{name.replace('_', '-')} {value}"


def spread(seen: StepProfile) -> str:
    """Return the spread of step times in words."""
    if seen.spread >= 1:
        return "the middle half is spread over more than a step time"
    return f"the middle half is within {seen.spread:.0%}"


def roughness(diagnosis: Diagnosis) -> str:
    """Return a sentence on why the figures are rough; empty if they are not."""
    return f"Figures are rough: {'; '.join(diagnosis.rough)}." if diagnosis.rough else ""


__all__ = [
    "LEVELS",
    "milliseconds",
    "no_finding",
    "operator_share",
    "option",
    "part_of",
    "rate",
    "reached",
    "roughness",
    "shapes",
    "spread",
]  # fmt: skip
