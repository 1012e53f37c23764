"""Backend candidates of a plan: the requested backend, or those examined on this machine before.

Every launch makes a plan. So no module is loaded and no process started for backends, unless one is
requested or the cache has an examination of one.
"""

from __future__ import annotations

import os

from cputrain.errors import UsageError
from cputrain.machine.cache import cache_folder
from cputrain.settings.backend import SETTING, UNSAFE, Candidate, Suits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.backends import BackendFinding
    from cputrain.machine import Machine
    from cputrain.settings.core.decision import UserValue


def backend_candidates(
    machine: Machine, user_value: UserValue | None, *, unsafe: bool
) -> tuple[Candidate, ...]:
    """Return the candidates for this machine's plan; examine a requested backend if necessary.

    Args:
        user_value: The user's value of the setting; None stands for auto.
        unsafe: Whether a backend may be used although it was found to be wrong.

    Raises:
        UsageError: `unsafe` was given without the name of a backend.
    """
    name = "auto" if user_value is None else user_value.value
    if unsafe and name in ("auto", "default"):
        raise UsageError(
            UNSAFE, "requires the name of a backend", found=f"{SETTING.flag} {name}",
            do=f"For example: {SETTING.flag} zendnn {UNSAFE}",
        )  # fmt: skip
    if name == "default" or (
        name == "auto" and not os.path.isdir(os.path.join(cache_folder(), "backends"))
    ):
        return ()
    from cputrain.backends.findings import cached_findings, require_backend

    if name == "auto" or user_value is None:
        return tuple(_candidate(finding, unsafe=False) for finding in cached_findings(machine))
    return (_candidate(require_backend(machine, name, user_value.where), unsafe=unsafe),)


def _candidate(finding: BackendFinding, *, unsafe: bool) -> Candidate:
    """Return a backend's examination as a candidate of the plan."""
    return Candidate(
        name=finding.probed.name,
        environment=finding.probed.environment,
        training=_suits(finding, "train", training=True),
        evaluation=_suits(finding, "evaluate while weights change", training=False),
        unsafe=unsafe,
    )


def _suits(finding: BackendFinding, use: str, *, training: bool) -> Suits:
    """Return whether a backend suits training or evaluation, and why not."""
    if finding.verdict is None:
        return Suits(fault=finding.note or finding.probed.reason)
    verdict = finding.verdict.of(training=training)
    if verdict is None:
        return Suits(claims=False, fault=f"it does not claim to {use}")
    is_preferable = verdict.is_preferable and not finding.probed.legacy
    return Suits(
        fault=verdict.fault and f"it was wrong: {verdict.fault}",
        gain=verdict.speedup if is_preferable else None,
        seen=str(verdict),
    )
