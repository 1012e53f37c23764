"""What is known of backends, for a plan: of the one that is asked for, or of those examined before.

A plan is made at every launch, so nothing is loaded and no process started unless somebody has
asked for a backend, or one was found to be right and faster here.
"""

from __future__ import annotations

import os

from cputrain.errors import UsageError
from cputrain.machine.cache import cache_folder
from cputrain.plan.backend import KNOB, UNSAFE, Candidate, Suits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.backends import BackendFinding
    from cputrain.machine import Machine
    from cputrain.plan import Setting


def known(machine: Machine, asked: Setting | None, *, unsafe: bool) -> tuple[Candidate, ...]:
    """Candidates for this machine's plan; the one that is asked for is examined, if need be."""
    name = "auto" if asked is None else asked.value
    if unsafe and name in ("auto", "default"):
        raise UsageError(
            UNSAFE, "goes with the name of a backend", found=f"{KNOB.flag} {name}",
            do=f"Say for example {KNOB.flag} zendnn {UNSAFE}.",
        )  # fmt: skip
    if name == "default" or (
        name == "auto" and not os.path.isdir(os.path.join(cache_folder(), "backends"))
    ):
        return ()
    from cputrain.backends.findings import cached_findings, require_backend

    if name == "auto" or asked is None:
        return tuple(_candidate(one, unsafe=False) for one in cached_findings(machine))
    return (_candidate(require_backend(machine, name, asked.where), unsafe=unsafe),)


def _candidate(found: BackendFinding, *, unsafe: bool) -> Candidate:
    return Candidate(
        name=found.probed.name,
        environment=found.probed.environment,
        training=_suits(found, "train", training=True),
        evaluation=_suits(found, "evaluate while weights change", training=False),
        unsafe=unsafe,
    )


def _suits(found: BackendFinding, what: str, *, training: bool) -> Suits:
    if found.verdict is None:
        return Suits(fault=found.note or found.probed.reason)
    judged = found.verdict.of(training=training)
    if judged is None:
        return Suits(claims=False, fault=f"it does not claim to {what}")
    is_preferable = judged.is_preferable and not found.probed.legacy
    return Suits(
        fault=judged.fault and f"it was wrong: {judged.fault}",
        gain=judged.speedup if is_preferable else None,
        seen=str(judged),
    )
