"""Every backend with what is known of it here, and which of them would be chosen."""

from __future__ import annotations

import sys

from cputrain.backends.probing import Probed, host_of, probe_all
from cputrain.backends.verdict import Verdict, load, save
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.backends.backend import Host
    from cputrain.machine import Machine


class Finding(Record):
    """One backend."""

    probed: Probed
    """What it is, and whether it can be had."""

    verdict: Verdict | None = None
    """Of its examination on this machine, if that holds still."""

    note: str = ""
    """Why there is none, if there was one."""


def findings(machine: Machine, *, examine: bool = False) -> list[Finding]:
    """All of them; those that can be had are examined, if that is wanted."""
    host = host_of(machine)
    return [_finding(machine, host, probed, examine) for probed in probe_all(host)]


def _finding(machine: Machine, host: Host, probed: Probed, examine: bool) -> Finding:
    if probed.reason or probed.name == "default":
        return Finding(probed=probed)
    known = circumstances(machine, host, probed)
    verdict, note = load(probed.name, known)
    if examine:
        from cputrain.backends.proof import prove

        verdict, note = prove(probed), ""
        try:
            save(verdict, known)
        except OSError as error:
            note = f"the verdict could not be kept: {error.strerror}"
    return Finding(probed=probed, verdict=verdict, note=note)


def circumstances(machine: Machine, host: Host, probed: Probed) -> dict[str, Any]:
    """What must be unchanged for a verdict to hold."""
    return {
        "the machine": machine.fingerprint(),
        "the CPUs": list(machine.budget.cpus),
        "torch": host.torch,
        "the backend": probed.version,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def chosen(found: Sequence[Finding], *, training: bool) -> str | None:
    """The fastest that is right; the default, where that is no faster. None without torch."""
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
