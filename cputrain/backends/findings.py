"""Backends with their probe results and verdicts, and the choice among them."""

from __future__ import annotations

import sys

from cputrain.backends.probing import ProbeResult, describe_host, probe_all
from cputrain.backends.registry import backend_names
from cputrain.backends.verdict import BackendVerdict, cached_names, load_verdict, save_verdict
from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.suggestions import closest, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.backends.backend import Host
    from cputrain.machine import Machine


class BackendFinding(Record):
    """A backend's probe result and verdict."""

    probed: ProbeResult
    """Description and availability of the backend."""

    verdict: BackendVerdict | None = None
    """Result of its examination on this machine; None if there is no valid one."""

    note: str = ""
    """Why a cached verdict is invalid or a new one was not cached; empty otherwise."""


def collect_findings(machine: Machine, *, examine: bool = False) -> list[BackendFinding]:
    """Return a finding for each backend; examine available backends if `examine`."""
    host = describe_host(machine)
    return [_finding_of(machine, host, probed, examine) for probed in probe_all(host)]


def _finding_of(machine: Machine, host: Host, probed: ProbeResult, examine: bool) -> BackendFinding:
    if probed.reason or probed.name == "default":
        return BackendFinding(probed=probed)
    if examine:
        return _examine(machine, host, probed)
    verdict, note = load_verdict(probed.name, verdict_circumstances(machine, host, probed))
    return BackendFinding(probed=probed, verdict=verdict, note=note)


def _examine(machine: Machine, host: Host, probed: ProbeResult) -> BackendFinding:
    from cputrain.backends.comparison import BackendUnavailableError, compare_with_default

    try:
        verdict, note = compare_with_default(probed), ""
    except BackendUnavailableError as error:
        return BackendFinding(probed=probed.replace(version="", notes="", reason=str(error)))
    try:
        save_verdict(verdict, verdict_circumstances(machine, host, probed))
    except OSError as error:
        note = f"the verdict could not be cached: {error.strerror}"
    return BackendFinding(probed=probed, verdict=verdict, note=note)


def require_backend(machine: Machine, name: str, where: str) -> BackendFinding:
    """Return the finding of a backend; examine the backend unless a valid verdict is cached.

    Args:
        machine: This machine.
        name: Name of the backend.
        where: Flag or variable that names the backend, for error messages.

    Raises:
        UsageError: The backend is unknown or unavailable.
    """
    names = backend_names()
    if name not in names:
        raise UsageError(
            where, f"must be one of auto, {', '.join(names)}", found=repr(name),
            do=did_you_mean(closest(name, names)) or "cputrain info --backends lists them.",
        )  # fmt: skip
    host = describe_host(machine)
    (probed,) = probe_all(host, name)
    _check_available(probed, where)
    finding = _finding_of(machine, host, probed, examine=False)
    if finding.verdict is not None:
        return finding
    print(
        f"cputrain: {name} is examined first, once for this machine; this takes 1 to 2 minutes",
        file=sys.stderr,
        flush=True,
    )
    finding = _examine(machine, host, probed)
    _check_available(finding.probed, where)
    return finding


def _check_available(probed: ProbeResult, where: str) -> None:
    if probed.reason:
        raise UsageError(
            where, "must be an available backend",
            found=f"{probed.name}, and {probed.reason}", do=probed.do,
        )  # fmt: skip


def cached_findings(machine: Machine) -> list[BackendFinding]:
    """Return backends with a cached verdict; revalidate only verdicts that could be chosen."""
    findings = []
    for name in cached_names():
        verdict, _ = load_verdict(name)
        mode_verdicts = () if verdict is None else (verdict.training, verdict.evaluation)
        if any(mode is not None and mode.is_preferable for mode in mode_verdicts):
            host = describe_host(machine)
            findings += [
                _finding_of(machine, host, probed, examine=False)
                for probed in probe_all(host, name)
            ]
        elif verdict is not None:
            findings.append(BackendFinding(probed=ProbeResult(name=name), verdict=verdict))
    return findings


def verdict_circumstances(machine: Machine, host: Host, probed: ProbeResult) -> dict[str, Any]:
    """Return the facts on which a verdict depends; if one changes, the verdict is invalid."""
    return {
        "the machine": machine.fingerprint(),
        "the CPUs": list(machine.budget.cpus),
        "torch": host.torch,
        "the backend": probed.version,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def choose_backend(findings: Sequence[BackendFinding], *, training: bool) -> str | None:
    """Return the fastest backend that is preferable to the default, else "default".

    Args:
        findings: Findings of all backends.
        training: Whether to choose for training or for evaluation.

    Returns:
        The backend's name; None if torch is not installed.
    """
    if any(finding.probed.name == "default" and finding.probed.reason for finding in findings):
        return None
    best, best_speedup = "default", 1.0
    for finding in findings:
        mode_verdict = None if finding.verdict is None else finding.verdict.of(training=training)
        if mode_verdict is None or finding.probed.legacy or not mode_verdict.is_preferable:
            continue
        if (mode_verdict.speedup or 0.0) > best_speedup:
            best, best_speedup = finding.probed.name, mode_verdict.speedup or 0.0
    return best
