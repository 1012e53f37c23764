"""Run and profile a script, measure the roof, and look for causes of slowness."""

from __future__ import annotations

import json
from datetime import datetime
from time import monotonic

from cputrain import __version__
from cputrain.counting import counted
from cputrain.diagnose.causes import CAUSES, units
from cputrain.diagnose.consistency import operators_above_roof, reconcile, roughness_reasons
from cputrain.diagnose.finding import MAX_SPEEDUP, DiagnosedCase, Finding, TriedRemedy
from cputrain.diagnose.layers import LayerTime, layer_times
from cputrain.diagnose.machine_layout import MachineLayout, machine_layout
from cputrain.diagnose.roof import Roof, cache_roof, machine_roof, product_seconds
from cputrain.diagnose.step_profile import StepProfile, step_profile_of
from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.tune.trial import LONGEST, fault_of, run_watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.tune.trial import Script

SCHEMA_VERSION = 1
"""Version of the JSON document."""

KIND = "cputrain diagnosis"
"""Value of the JSON document's "kind"."""

MIN_SPEEDUP = 1.05
"""Smallest predicted speed-up that is reported."""

NUM_STEPS = 12
"""Default number of undisturbed steps; a run with warm-up and traced steps has fewer than 20."""

NUM_TRACED = 3
"""Number of steps whose operators are traced."""

MAX_CACHED_RAISE = 1.25
"""Largest excess over an undisturbed roof at which the raised roof is cached as undisturbed."""

ENOUGH_S = 8.0
"""Seconds after which fewer undisturbed steps are enough."""

MIN_STEPS = 3
"""Smallest number of steps after warm-up with which a short script can be diagnosed."""

MAX_UNTIMED_S = 12.0
"""Longest predicted time in seconds of the untimed steps of a run with fewer threads."""

THREADS_DIVISOR = 4
"""Divisor of the thread count for the run with fewer threads."""

NUM_UNTIMED_STEPS = 6
"""Number of warm-up and traced steps of a run."""


class Diagnosis(Record):
    """Profile of a script's step, the machine's roof, and the causes of slowness."""

    script: str
    """File name of the script."""

    when: str
    """Date and time of the diagnosis, to the minute."""

    cputrain: str
    """Version of cputrain."""

    box: MachineLayout
    """Sockets, cores and memory of the machine."""

    roof: Roof
    """Highest rates of the machine."""

    seen: StepProfile
    """Profile of a step under plain python."""

    findings: tuple[Finding, ...]
    """Causes with a speed-up of at least `MIN_SPEEDUP`, the largest first."""

    layers: tuple[LayerTime, ...]
    """Time by kind of layer, the largest first."""

    applied: tuple[TriedRemedy, ...] = ()
    """Remedies that were tried."""

    def __post_init__(self) -> None:
        """Reconcile the roof and the profile, which may come from a document."""
        self.__dict__["roof"], self.__dict__["seen"] = reconcile(self.roof, self.seen)

    @property
    def rough(self) -> tuple[str, ...]:
        """Return why the figures are rough; empty if they are not."""
        return roughness_reasons(self.roof, self.seen)

    @property
    def speedup_of_all(self) -> float:
        """Return the speed-up of a step if the findings were independent: an upper limit.

        It is never above what the roof of the operators allows, in the fastest dtype if a remedy
        lowers the precision.
        """
        seen, roof = self.seen, self.roof
        saved_s = sum(finding.lost_seconds for finding in self.findings)
        roof_s = sum(roof.least_seconds(operator, seen.threads)[0] for operator in seen.operators)
        if any(finding.lowers_precision for finding in self.findings):
            peaks = {dtype: roof.flops(dtype, seen.threads) for dtype in roof.flops_per_s}
            roof_s *= peaks.get("float32", max(peaks.values())) / max(peaks.values())
        least_s = max(seen.step - saved_s, roof_s, seen.step / MAX_SPEEDUP)
        largest = max((finding.speedup for finding in self.findings), default=1.0)
        return max(seen.step / least_s, largest)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document, with kind, schema version, and why its figures are rough."""
        header = {"kind": KIND, "schema_version": SCHEMA_VERSION, "rough": list(self.rough)}
        return {**header, **super().as_json()}


def diagnose(
    script: Script,
    machine: Machine,
    *,
    steps: int = NUM_STEPS,
    longest: float = LONGEST,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Run the script under plain python, and return its diagnosis.

    Args:
        script: Script with its arguments.
        machine: Machine that it runs on.
        steps: Number of undisturbed steps.
        longest: Time limit of a run in seconds.
        tell: Called with a message before each phase.

    Raises:
        UsageError: The script fails, or takes too few optimizer steps.
        CputrainError: The roof cannot be measured.
    """
    tell("timing the script's steps, in the first of two runs")
    begin = monotonic()
    profile, torch = profile_script(script, steps, longest)
    run_s = monotonic() - begin
    roof, profile = consistent_roof(machine, torch, profile, tell)
    fewer, products = None, {}
    try:
        fewer = _profile_with_fewer_threads(script, machine, profile, steps, longest, run_s, tell)
        products = product_seconds(units.products_to_time(profile), profile.threads)
    except KeyboardInterrupt:
        tell("interrupted: what is known is shown")
    case = DiagnosedCase(machine=machine, roof=roof, seen=profile, fewer=fewer, products=products)
    findings = [
        finding for cause in CAUSES for finding in cause.find(case)
        if finding.speedup >= MIN_SPEEDUP
    ]  # fmt: skip
    return Diagnosis(
        script=script.target.name,
        when=datetime.now().isoformat(sep=" ", timespec="minutes"),
        cputrain=__version__,
        box=machine_layout(machine),
        roof=roof,
        seen=profile,
        findings=tuple(sorted(findings, key=lambda finding: -finding.speedup)),
        layers=layer_times(profile),
    )


def consistent_roof(
    machine: Machine, torch: str, profile: StepProfile, tell: Callable[[str], None]
) -> tuple[Roof, StepProfile]:
    """Return a roof that no operator exceeds, measured again if one does, and the profile."""
    roof = machine_roof(machine, torch, tell=tell)
    if above := operators_above_roof(roof, profile):
        tell(f"measuring again, because {above[0].name} of the script was faster")
        roof = machine_roof(machine, torch, again=True, tell=tell)
    raised, profile = reconcile(roof, profile)
    if (
        raised != roof
        and not roof.rough
        and not operators_above_roof(roof, profile, MAX_CACHED_RAISE)
    ):
        # nothing disturbed either measurement: the script has kernels that are a little faster
        raised = raised.replace(rough=())
        cache_roof(machine, torch, raised)
    return raised, profile


def profile_script(
    script: Script,
    steps: int,
    longest: float,
    *,
    threads: int = 0,
    settings: dict[str, str] | None = None,
) -> tuple[StepProfile, str]:
    """Run a script, and return the profile of its step and its version of torch.

    Args:
        script: Script with its arguments.
        steps: Number of undisturbed steps; a script with fewer runs again with what it has.
        longest: Time limit of the run in seconds.
        threads: Intra-op threads, whatever the script sets; 0 leaves them to the script.
        settings: Options of `cputrain launch`; None runs plain python.

    Raises:
        UsageError: The script fails, or takes too few optimizer steps.
    """
    num_traced = NUM_TRACED if steps > 2 * NUM_TRACED else 1
    arguments = {
        "diagnose": steps, "traced": num_traced, "seconds": ENOUGH_S, "threads": threads
    }  # fmt: skip
    watched = run_watched(script, settings, arguments, longest=longest)
    document = json.loads(watched.seen) if watched.seen else {}
    fault, advice = fault_of(watched), ""
    if not fault and not document.get("optimizers"):
        fault = "no optimizer took a step"
        advice = "Steps of torch.optim.Optimizer and of its subclasses count. "
    elif not fault and not document["traced"]:
        num_steps = len(document["steps"]) // len(document["optimizers"])
        if MIN_STEPS <= num_steps < steps + num_traced:  # the script ended: run it with fewer
            fewer = num_steps - (NUM_TRACED if num_steps > 2 * NUM_TRACED else 1)
            return profile_script(script, fewer, longest, threads=threads, settings=settings)
        fault = f"it took {counted(num_steps, 'step')} after warm-up, and {MIN_STEPS} are needed"
    if fault:
        raise UsageError(
            f"the script {script.target.name}",
            "must train for some steps" + (" under plain python" if settings is None else ""),
            found=fault,
            do=f"{advice}Its output is in {script.folder}.",
        )
    return step_profile_of(document), document["torch"]


def _profile_with_fewer_threads(
    script: Script,
    machine: Machine,
    profile: StepProfile,
    steps: int,
    longest: float,
    run_s: float,
    tell: Callable[[str], None],
) -> StepProfile | None:
    """Return the profile with fewer threads; None if the run fails or would take too long.

    Args:
        script: Script with its arguments.
        machine: Machine that it runs on.
        profile: Profile with all threads.
        steps: Number of undisturbed steps.
        longest: Time limit of the run in seconds.
        run_s: Duration of the run with all threads.
        tell: Called with a message before the run.
    """
    cores = max(1, machine.budget.physical_cores)
    num_threads = cores if profile.threads > cores else max(1, profile.threads // THREADS_DIVISOR)
    max_step_s = profile.step * profile.threads / num_threads
    if num_threads >= profile.threads or (
        num_threads < cores and max_step_s * NUM_UNTIMED_STEPS > MAX_UNTIMED_S
    ):
        return None
    tell(
        f"timing steps with {num_threads} of {counted(profile.threads, 'thread')}, "
        f"about {run_s:.0f} s"
    )
    try:
        return profile_script(script, steps, longest, threads=num_threads)[0]
    except UsageError:  # the script does not work with fewer threads
        return None
