"""Probe which backends are available, concurrently, each in a separate process."""

from __future__ import annotations

import json
import platform
import time
from contextlib import ExitStack

from cputrain.backends.backend import Host
from cputrain.backends.installed import version_of
from cputrain.backends.process import EndedError, Process, how_ended
from cputrain.backends.registry import names
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.machine import Machine

PATIENCE = 0.8
"""Seconds for all of them to be imported after they have passed their probes. One that is still at
it by then may be good: its import is seen to when it is examined."""

LONGEST = 30.0
"""Seconds for a probe. It takes a fraction of one, unless hundreds of megabytes of libraries are
read from a slow disk for the first time."""


class Probed(Record):
    """A backend's description and its availability on this machine."""

    name: str
    """What the user calls it."""

    title: str = ""
    """What it is, in a few words."""

    purpose: str = ""
    """What its makers made it for."""

    torch: str = ""
    """The versions of torch that it works with."""

    legacy: bool = False
    """Whether it gets no fixes any more."""

    trains: bool = False
    """Whether it claims to train."""

    evaluates: bool = False
    """Whether it claims to evaluate while weights change."""

    environment: dict[str, str] = {}
    """Variables that must be set before torch is loaded."""

    version: str = ""
    """The backend's version; empty if it is unavailable."""

    notes: str = ""
    """What it does on this machine."""

    reason: str = ""
    """Why it is unavailable, as half a sentence; empty if it is available."""

    do: str = ""
    """What the user can do to make it available."""


def host_of(machine: Machine) -> Host:
    """Return the host description passed to probes."""
    return Host(system=platform.system(), isa=frozenset(machine.isa), torch=version_of("torch"))


def probe_all(host: Host, only: str | None = None) -> list[Probed]:
    """Probe all backends, or only one, and return results in registry order."""
    document = json.dumps({**host.as_json(), "isa": sorted(host.isa)})
    with ExitStack() as started:
        asked = {}
        for name in names():
            if only in (None, name):
                asked[name] = process = Process("probe", name, document, environment={})
                started.callback(process.end)
        begin = time.monotonic()
        return [_answered(name, process, begin) for name, process in asked.items()]


def _answered(name: str, process: Process, begin: float) -> Probed:
    """Collect a probe's answers until its timeout."""
    found = Probed(name=name)
    try:
        while True:
            end = begin + (PATIENCE if found.version else LONGEST)
            said = process.answer(end - time.monotonic())
            if said is None:
                break
            found = _with(found, said)
    except EndedError as error:
        if error.code:
            how = how_ended(error.code)
            return found.replace(version="", notes="", reason=f"asking for it {how}", do="")
    if not found.version and not found.reason:
        return found.replace(reason=f"it did not answer within {LONGEST:g} s", do="")
    return found


def _with(found: Probed, said: dict[str, Any]) -> Probed:
    if "unavailable" in said:
        return found.replace(version="", notes="", **said["unavailable"])
    return found.replace(**said.get("available", said))
