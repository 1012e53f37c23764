"""A script is run and looked into: Case → Diagnosis."""

from __future__ import annotations

import json
from datetime import datetime

from cputrain import __version__
from cputrain.diagnose.box import Box, box_of
from cputrain.diagnose.causes import CAUSES, units
from cputrain.diagnose.consistency import doubts, exceeding, reconciled
from cputrain.diagnose.finding import Applied, Case, Finding
from cputrain.diagnose.layers import Layer, layers_of
from cputrain.diagnose.roof import Roof, keep_roof, product_seconds, roof_of
from cputrain.diagnose.seen import Seen, seen_of
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

KIND = "cputrain diagnosis"

WORTH = 1.05
"""A gain that is smaller is not talked of."""

STEPS = 12
"""That are timed as they are; with those to warm up and those that are traced, fewer than 20."""

TRACED = 3

KEPT = 1.25
"""By how much a roof that nothing disturbed may be exceeded, to be kept as what it rose to."""

SECONDS = 8.0
"""After so long fewer steps will do."""

LEAST = 3
"""Steps behind the first few that will do, where a script has no more."""

PATIENCE = 12.0
"""Seconds that steps of a second run may take beside those that are timed."""


class Diagnosis(Record):
    """What was found."""

    script: str
    when: str
    """The day and the minute."""

    cputrain: str
    """Its version."""

    box: Box
    roof: Roof
    seen: Seen
    findings: tuple[Finding, ...]
    """Those worth doing, the one that gains most first."""

    layers: tuple[Layer, ...]
    """By kind, the dearest first."""

    applied: tuple[Applied, ...] = ()
    """Remedies, where they were tried."""

    def __post_init__(self) -> None:
        """Let no operator exceed the roof, wherever both come from."""
        self.__dict__["roof"], self.__dict__["seen"] = reconciled(self.roof, self.seen)

    @property
    def rough(self) -> tuple[str, ...]:
        """Why figures are rough; empty where nothing disturbed them."""
        return doubts(self.roof, self.seen)

    def as_json(self) -> dict[str, Any]:
        """Return the document, with what it is, its schema's version, and why it is rough."""
        about = {"kind": KIND, "schema_version": SCHEMA_VERSION, "rough": list(self.rough)}
        return {**about, **super().as_json()}


def diagnose(
    script: Script,
    machine: Machine,
    *,
    steps: int = STEPS,
    longest: float = LONGEST,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Run it under plain python and look for the six causes. No run takes longer than `longest`."""
    tell("the script's steps, as they are")
    seen, torch = run(script, steps, longest)
    tell("what this machine can do at best")
    roof, seen = _roof_over(machine, torch, seen, tell)
    fewer = _with_fewer(script, machine, seen, steps, longest, tell)
    products = product_seconds(units.products_to_time(seen), seen.threads)
    case = Case(machine=machine, roof=roof, seen=seen, fewer=fewer, products=products)
    every = [one for cause in CAUSES for one in cause.find(case) if one.speedup >= WORTH]
    return Diagnosis(
        script=script.target.name,
        when=datetime.now().isoformat(sep=" ", timespec="minutes"),
        cputrain=__version__,
        box=box_of(machine),
        roof=roof,
        seen=seen,
        findings=tuple(sorted(every, key=lambda one: -one.speedup)),
        layers=layers_of(seen),
    )


def _roof_over(
    machine: Machine, torch: str, seen: Seen, tell: Callable[[str], None]
) -> tuple[Roof, Seen]:
    """Return a roof that nothing exceeds that was seen: measured again where something does."""
    roof = roof_of(machine, torch, tell=tell)
    if beyond := exceeding(roof, seen):
        tell(f"it is measured again, because {beyond[0].name} was faster")
        roof = roof_of(machine, torch, again=True, tell=tell)
    raised, seen = reconciled(roof, seen)
    if raised != roof and not roof.rough and not exceeding(roof, seen, KEPT):
        # the machine was quiet twice: kernels of this script are a little faster than what is timed
        raised = raised.replace(rough=())
        keep_roof(machine, torch, raised)
    return raised, seen


def run(
    script: Script,
    steps: int,
    longest: float,
    *,
    threads: int = 0,
    settings: dict[str, str] | None = None,
) -> tuple[Seen, str]:
    """What is seen of the script, and its torch: under plain python, or launched with settings."""
    traced = TRACED if steps > 2 * TRACED else 1
    asked = {"diagnose": steps, "traced": traced, "seconds": SECONDS, "threads": threads}
    watched = run_watched(script, settings, asked, longest=longest)
    document = json.loads(watched.seen) if watched.seen else {}
    fault = fault_of(watched)
    if not fault and not document.get("optimizers"):
        fault = "no optimizer took a step"
    elif not fault and not document["traced"]:
        count = len(document["steps"]) // len(document["optimizers"])
        if LEAST <= count < steps + traced:  # it has no more: then once more, with what it has
            fewer = count - (TRACED if count > 2 * TRACED else 1)
            return run(script, fewer, longest, threads=threads, settings=settings)
        fault = f"it took {count} steps behind the first few, and {LEAST} are needed"
    if fault:
        raise UsageError(
            f"the script {script.target.name}",
            "must train for some steps" + (" under plain python" if settings is None else ""),
            found=fault,
            do=f"What it printed is in {script.folder}.",
        )
    return seen_of(document), document["torch"]


def _with_fewer(
    script: Script,
    machine: Machine,
    seen: Seen,
    steps: int,
    longest: float,
    tell: Callable[[str], None],
) -> Seen | None:
    """The same with fewer threads, where that is done soon."""
    cores = max(1, machine.budget.physical_cores)
    count = cores if seen.threads > cores else max(1, seen.threads // FEWER)
    slowest = seen.step * seen.threads / count
    if count >= seen.threads or (count < cores and slowest * AROUND > PATIENCE):
        return None
    tell(f"the same with {count} of {seen.threads} threads")
    try:
        return run(script, steps, longest, threads=count)[0]
    except UsageError:  # it cannot do with fewer
        return None


FEWER = 4
"""By how much fewer threads are tried."""

AROUND = 6
"""Steps of a run beside those that are timed, which a run has some seconds for."""
