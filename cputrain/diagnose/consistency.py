"""Hold what was seen of a script against the roof: no operator may exceed it.

An operator that does so is no magic: the roof was measured while others used the CPUs, or the
operator was counted wrongly. `exceeding` tells that it is to be measured again. Where that does not
help, the operator itself shows what the machine can do, and the roof is raised to it and marked as
rough; a count that no roof explains is not used.
"""

from __future__ import annotations

from cputrain.runtime.flops import is_counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.seen import Operator, Seen

TOLERANCE = 1.05
"""By how much an operator may exceed the roof without a word: clocks of CPUs vary."""

BELIEVED = 4.0
"""By how much it may exceed it, so that the roof is wrong rather than the operator's count."""

ROUNDING = 1 + 1e-9
"""Of floating-point numbers."""

EXCEEDED = "an operator of the script was faster than the best that was measured"


def exceeding(roof: Roof, seen: Seen, tolerance: float = TOLERANCE) -> tuple[Operator, ...]:
    """Return operators that are faster than this roof allows, by more than clocks vary."""
    return tuple(
        operator for operator in seen.operators
        if (is_counted(operator.name)
            and operator.flops_per_s > tolerance * _highest_flops(roof, seen, operator))
        or (operator.elementwise
            and operator.bytes_per_s > tolerance * _highest_bandwidth(roof, seen, operator))
    )  # fmt: skip


def reconciled(roof: Roof, seen: Seen) -> tuple[Roof, Seen]:
    """Return a roof that no operator exceeds, and operators that do not exceed it."""
    is_rough = bool(exceeding(roof, seen))
    for operator in seen.operators:
        roof = _raised(roof, seen, operator)
    operators = tuple(_within(roof, seen, operator) for operator in seen.operators)
    if is_rough and EXCEEDED not in roof.rough:
        roof = roof.replace(rough=(*roof.rough, EXCEEDED))
    return roof, seen if operators == seen.operators else seen.replace(operators=operators)


def _highest_flops(roof: Roof, seen: Seen, operator: Operator) -> float:
    return roof.highest_flops(operator.computes, seen.threads)


def _highest_bandwidth(roof: Roof, seen: Seen, operator: Operator) -> float:
    each = _bytes_of_call(operator)
    seconds = roof.transfer_seconds(each, seen.threads)
    return each / seconds if seconds else roof.bandwidth(seen.threads, "l2")


def _bytes_of_call(operator: Operator) -> float:
    return operator.bytes / operator.calls if operator.calls else operator.bytes


def _raised(roof: Roof, seen: Seen, operator: Operator) -> Roof:
    """Return the roof with what this operator shows to be possible."""
    rate, highest = operator.flops_per_s, _highest_flops(roof, seen, operator)
    if is_counted(operator.name) and rate <= BELIEVED * highest:
        dtype = operator.computes or "float32"
        if rate > roof.flops(dtype, seen.threads):
            table = {dtype: roof.flops_per_s["float32"], **roof.flops_per_s}
            raised = {**table, dtype: _with(table[dtype], seen.threads, rate)}
            roof = roof.replace(flops_per_s=raised)
    rate, highest = operator.bytes_per_s, _highest_bandwidth(roof, seen, operator)
    if operator.elementwise and ROUNDING * highest < rate <= BELIEVED * highest:
        level = roof.level_of(_bytes_of_call(operator), seen.threads)
        table = roof.bandwidth_bytes_per_s
        raised = {**table, level: _with(table[level], seen.threads, rate)}
        roof = roof.replace(bandwidth_bytes_per_s=raised)  # faster levels rise with it
    return roof


def _with(rates: dict[str, float], threads: int, rate: float) -> dict[str, float]:
    """Return rates of which that with so many threads is at least this."""
    return {**rates, str(threads): max(rate, rates.get(str(threads), 0.0))}


def _within(roof: Roof, seen: Seen, operator: Operator) -> Operator:
    """Return the operator without counts that this roof does not allow."""
    changes: dict[str, float] = {}
    if operator.flops and (
        not operator.seconds or operator.flops_per_s > roof.flops(operator.computes, seen.threads)
    ):
        changes["flops"] = 0.0
    highest = _highest_bandwidth(roof, seen, operator)
    if operator.bytes_per_s > ROUNDING * highest:  # the rest was not moved
        changes["bytes"] = highest * operator.seconds
    return operator.replace(**changes) if changes else operator


def doubts(roof: Roof, seen: Seen, tolerated: float = 0.3) -> tuple[str, ...]:
    """Return why figures are rough, where they are.

    Args:
        tolerated: how many CPUs others may use, and how far apart steps may be.
    """
    reasons = list(roof.rough)
    # documents of before workers were counted have them among others
    knows_others = "workers_seconds" in seen.counted or not seen.loaders
    if seen.others > tolerated and knows_others:
        reasons.append(f"others used {seen.others:.1f} CPUs while steps were timed")
    if seen.others_traced > tolerated:
        reasons.append(f"others used {seen.others_traced:.1f} CPUs while operators were timed")
    if seen.spread > tolerated:
        reasons.append("steps differ in their time")
    if seen.whole > (1 + tolerated) * seen.step:
        reasons.append("operators took longer while they were timed than a step without that")
    return tuple(reasons)
