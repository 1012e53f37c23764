"""The least time of a script's step: its products at the machine's peak, and each tensor moved."""

from __future__ import annotations

from collections import defaultdict

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.diagnose.roof import Roof
    from cputrain.diagnose.step_profile import StepProfile
    from cputrain.machine import Machine
    from cputrain.tune.trial import Script

NUM_STEPS = 6
"""Undisturbed steps of the run that counts operations and bytes."""

LONGEST_S = 600.0
"""Time limit of that run in seconds."""

NUM_GAPS = 5
"""Number of operators that are named as farthest from the roof."""

SMALLEST_GAP = 0.01
"""Smallest share of a step that is named."""


class OperatorGap(Record):
    """How far the calls of one operator in a step are from their roof."""

    name: str
    """Name of the operator without its namespace, such as "mm"."""

    calls: float
    """Number of calls in a step."""

    share: float
    """Fraction of a step that calls at the roof would save."""


class StepRoof(Record):
    """Least time of a step in the dtypes that the script chose."""

    product_seconds: float
    """Time of the step's matrix products and convolutions at the highest measured FLOP/s."""

    memory_seconds: float
    """Time to move each tensor once between memory and cores, at the highest measured rate."""

    rough: tuple[str, ...] = ()
    """Why the machine may be faster; empty if nothing disturbed its measurement."""

    gaps: tuple[OperatorGap, ...] = ()
    """Operators of a step under launch that are farthest from their roofs, the farthest first."""

    @property
    def seconds(self) -> float:
        """Return the least time of a step."""
        return self.product_seconds + self.memory_seconds

    def share(self, step_seconds: float) -> float:
        """Return the fraction of the roof that a step of some duration reaches, at most 1."""
        return min(1.0, self.seconds / step_seconds)


def measure_step_roof(
    script: Script, machine: Machine, tell: Callable[[str], None] = lambda _: None
) -> StepRoof:
    """Run a script's first steps under launch, and return the roof of a step.

    Fused optimizers and the like have fewer tensors to move than plain python's, so the roof of a
    step under launch is the lower one.

    Raises:
        UsageError: The script fails, or takes too few optimizer steps.
        CputrainError: The machine's roof cannot be measured.
    """
    from cputrain.diagnose.diagnosis import consistent_roof, profile_script

    tell(f"counting operations and bytes of a step of {script.target.name}")
    profile, torch = profile_script(script, NUM_STEPS, LONGEST_S, settings={})
    roof, profile = consistent_roof(machine, torch, profile, tell)
    return step_roof(profile, roof)


def step_roof(profile: StepProfile, roof: Roof) -> StepRoof:
    """Return the roof of a step from its profile and the machine's roof."""
    threads = profile.threads
    return StepRoof(
        product_seconds=roof.product_seconds(profile.operators, threads),
        memory_seconds=roof.transfer_seconds(profile.tensor_bytes, threads),
        rough=roof.rough,
        gaps=_gaps(profile, roof),
    )


def _gaps(profile: StepProfile, roof: Roof) -> tuple[OperatorGap, ...]:
    # a profiled step that was disturbed takes longer than the undisturbed ones
    step_s = max(profile.step, sum(operator.seconds for operator in profile.operators))
    calls: defaultdict[str, float] = defaultdict(float)
    lost: defaultdict[str, float] = defaultdict(float)
    for operator in profile.operators:
        calls[operator.name] += operator.calls
        least, _ = roof.least_seconds(operator, profile.threads)
        lost[operator.name] += max(0.0, operator.seconds - least) / step_s
    return tuple(
        OperatorGap(name=name, calls=calls[name], share=share)
        for name, share in sorted(lost.items(), key=lambda item: -item[1])[:NUM_GAPS]
        if share >= SMALLEST_GAP
    )
