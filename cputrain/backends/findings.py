"""Backends with their probe results and verdicts, and the choice among them."""

from __future__ import annotations

import sys

from cputrain.backends.probing import Probed, host_of, probe_all
from cputrain.backends.registry import names
from cputrain.backends.verdict import Verdict, kept, load, save
from cputrain.errors import UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.backends.backend import Host
    from cputrain.machine import Machine


class Finding(Record):
    """A backend's probe result and verdict."""

    probed: Probed
    """What it is, and whether it can be had."""

    verdict: Verdict | None = None
    """Of its examination on this machine, if that holds still."""

    note: str = ""
    """Why there is none, if there was one."""


def findings(machine: Machine, *, examine: bool = False) -> list[Finding]:
    """Return a finding for each backend; examine available backends if `examine`."""
    host = host_of(machine)
    return [_finding(machine, host, probed, examine) for probed in probe_all(host)]


def _finding(machine: Machine, host: Host, probed: Probed, examine: bool) -> Finding:
    if probed.reason or probed.name == "default":
        return Finding(probed=probed)
    if examine:
        return _examined(machine, host, probed)
    verdict, note = load(probed.name, circumstances(machine, host, probed))
    return Finding(probed=probed, verdict=verdict, note=note)


def _examined(machine: Machine, host: Host, probed: Probed) -> Finding:
    from cputrain.backends.proof import CannotBeHadError, prove

    try:
        verdict, note = prove(probed), ""
    except CannotBeHadError as error:
        return Finding(probed=probed.replace(version="", notes="", reason=str(error)))
    try:
        save(verdict, circumstances(machine, host, probed))
    except OSError as error:
        note = f"the verdict could not be kept: {error.strerror}"
    return Finding(probed=probed, verdict=verdict, note=note)


def named(machine: Machine, name: str, where: str) -> Finding:
    """Return the named backend's finding; examine it unless a valid verdict is cached."""
    known = names()
    if name not in known:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1)
        raise UsageError(
            where, f"must be one of auto, {', '.join(known)}", found=repr(name),
            do=f"Did you mean {close[0]}?" if close else "cputrain info --backends tells of them.",
        )  # fmt: skip
    host = host_of(machine)
    (probed,) = probe_all(host, name)
    _must_be_had(probed, where)
    found = _finding(machine, host, probed, examine=False)
    if found.verdict is not None:
        return found
    print(
        f"cputrain: {name} is examined first, once for this machine: it takes a minute or two",
        file=sys.stderr,
        flush=True,
    )
    found = _examined(machine, host, probed)
    _must_be_had(found.probed, where)
    return found


def _must_be_had(probed: Probed, where: str) -> None:
    if probed.reason:
        raise UsageError(
            where, "must be a backend that can be had",
            found=f"{probed.name}, and {probed.reason}", do=probed.do,
        )  # fmt: skip


def remembered(machine: Machine) -> list[Finding]:
    """Return backends with a cached verdict; revalidate only verdicts that could be chosen."""
    found = []
    for name in kept():
        verdict, _ = load(name)
        judged = () if verdict is None else (verdict.training, verdict.evaluation)
        if any(one is not None and one.pays for one in judged):
            host = host_of(machine)
            found += [_finding(machine, host, one, examine=False) for one in probe_all(host, name)]
        elif verdict is not None:
            found.append(Finding(probed=Probed(name=name), verdict=verdict))
    return found


def circumstances(machine: Machine, host: Host, probed: Probed) -> dict[str, Any]:
    """Return the circumstances that must be unchanged for a verdict to stay valid."""
    return {
        "the machine": machine.fingerprint(),
        "the CPUs": list(machine.budget.cpus),
        "torch": host.torch,
        "the backend": probed.version,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def chosen(found: Sequence[Finding], *, training: bool) -> str | None:
    """Return the fastest correct backend, else the default; None without torch."""
    if any(one.probed.name == "default" and one.probed.reason for one in found):
        return None
    best, speed = "default", 1.0
    for one in found:
        judged = None if one.verdict is None else one.verdict.of(training=training)
        if judged is None or one.probed.legacy or not judged.pays:
            continue
        if (judged.speedup or 0.0) > speed:
            best, speed = one.probed.name, judged.speedup or 0.0
    return best
