"""Reconcile a step profile with the roof, so that no operator exceeds the roof.

An operator can exceed the roof only if other processes used the CPUs while the roof was measured,
or if its operations are counted wrongly. If `operators_above_roof` returns any, the roof should be
measured again. If operators exceed the new roof too, `reconcile` raises the roof to their rates and
marks it as rough; a count far above the roof is dropped.
"""

from __future__ import annotations

from cputrain.runtime.flops import is_counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.step_profile import OperatorTime, StepProfile

TOLERANCE = 1.05
"""Factor by which an operator may exceed the roof, since CPU clocks vary."""

MAX_RAISE = 4.0
"""Largest excess over the roof at which the roof is wrong, and not the count of the operator."""

ROUNDING = 1 + 1e-9
"""Factor for rounding errors of floating-point numbers."""

EXCEEDED = "an operator of the script was faster than the best that was measured"


def operators_above_roof(
    roof: Roof, profile: StepProfile, tolerance: float = TOLERANCE
) -> tuple[OperatorTime, ...]:
    """Return the operators that exceed the roof by more than a factor of `tolerance`."""
    return tuple(
        operator for operator in profile.operators
        if (is_counted(operator.name)
            and operator.flops_per_s > tolerance * _highest_flops(roof, profile, operator))
        or (operator.elementwise
            and operator.bytes_per_s > tolerance * _highest_bandwidth(roof, profile, operator))
    )  # fmt: skip


def reconcile(roof: Roof, profile: StepProfile) -> tuple[Roof, StepProfile]:
    """Return the roof raised to plausible operator rates, and the profile without other excess."""
    is_rough = bool(operators_above_roof(roof, profile))
    for operator in profile.operators:
        roof = _raise_roof(roof, profile, operator)
    operators = tuple(_clamp_counts(roof, profile, operator) for operator in profile.operators)
    if is_rough and EXCEEDED not in roof.rough:
        roof = roof.replace(rough=(*roof.rough, EXCEEDED))
    return roof, profile if operators == profile.operators else profile.replace(operators=operators)


def _highest_flops(roof: Roof, profile: StepProfile, operator: OperatorTime) -> float:
    return roof.highest_flops(operator.compute_dtype, profile.threads)


def _highest_bandwidth(roof: Roof, profile: StepProfile, operator: OperatorTime) -> float:
    num_bytes = _bytes_per_call(operator)
    seconds = roof.transfer_seconds(num_bytes, profile.threads)
    return num_bytes / seconds if seconds else roof.bandwidth(profile.threads, "l2")


def _bytes_per_call(operator: OperatorTime) -> float:
    return operator.bytes / operator.calls if operator.calls else operator.bytes


def _raise_roof(roof: Roof, profile: StepProfile, operator: OperatorTime) -> Roof:
    """Return the roof raised to the rates of an operator, if they are plausible."""
    rate, highest = operator.flops_per_s, _highest_flops(roof, profile, operator)
    if is_counted(operator.name) and rate <= MAX_RAISE * highest:
        dtype = operator.compute_dtype or "float32"
        if rate > roof.flops(dtype, profile.threads):
            table = {dtype: roof.flops_per_s["float32"], **roof.flops_per_s}
            raised = {**table, dtype: _with_rate(table[dtype], profile.threads, rate)}
            roof = roof.replace(flops_per_s=raised)
    rate, highest = operator.bytes_per_s, _highest_bandwidth(roof, profile, operator)
    if operator.elementwise and ROUNDING * highest < rate <= MAX_RAISE * highest:
        level = roof.level_of(_bytes_per_call(operator), profile.threads)
        table = roof.bandwidth_bytes_per_s
        raised = {**table, level: _with_rate(table[level], profile.threads, rate)}
        roof = roof.replace(bandwidth_bytes_per_s=raised)  # Roof raises faster levels with it
    return roof


def _with_rate(rates: dict[str, float], threads: int, rate: float) -> dict[str, float]:
    """Return rates by thread count, with at least `rate` for `threads`."""
    return {**rates, str(threads): max(rate, rates.get(str(threads), 0.0))}


def _clamp_counts(roof: Roof, profile: StepProfile, operator: OperatorTime) -> OperatorTime:
    """Return the operator with FLOPs above the roof set to 0, and bytes limited to the roof."""
    changes: dict[str, float] = {}
    if operator.flops and (
        not operator.seconds
        or operator.flops_per_s > roof.flops(operator.compute_dtype, profile.threads)
    ):
        changes["flops"] = 0.0
    highest = _highest_bandwidth(roof, profile, operator)
    if operator.bytes_per_s > ROUNDING * highest:  # caches held the rest
        changes["bytes"] = highest * operator.seconds
    return operator.replace(**changes) if changes else operator


def roughness_reasons(roof: Roof, profile: StepProfile, tolerance: float = 0.3) -> tuple[str, ...]:
    """Return why the figures of a diagnosis are rough; empty if they are not.

    Args:
        roof: Roof of the machine.
        profile: Step profile.
        tolerance: Accepted number of CPUs in use by other processes, and accepted spread of steps.
    """
    reasons = list(roof.rough)
    # older documents count the CPU time of DataLoader workers as that of other processes
    has_worker_time = "workers_seconds" in profile.counted or not profile.loaders
    if profile.other_cpus > tolerance and has_worker_time:
        reasons.append(f"other processes used {profile.other_cpus:.1f} CPUs while steps were timed")
    if profile.others_traced > tolerance:
        reasons.append(
            f"other processes used {profile.others_traced:.1f} CPUs while operators were timed"
        )
    if profile.spread > tolerance:
        reasons.append("step times vary")
    if profile.instrumented_step > (1 + tolerance) * profile.step:
        reasons.append("timing operators one by one made the step slower")
    return tuple(reasons)
