"""Which backends can be had: each is asked in a process of its own, all at once."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time

from cputrain.backends.backend import Host
from cputrain.backends.installed import version_of
from cputrain.backends.registry import names
from cputrain.bench.measurement import clean_environment
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine import Machine

PATIENCE = 0.8
"""Seconds for all of them to be imported after they have passed their probes. One that is still at
it by then may be good: its import is seen to when it is examined."""

LONGEST = 10.0
"""Seconds for a probe: on a machine that is busy, starting Python may take one."""


class Probed(Record):
    """What a backend is, and whether it can be had here."""

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
    """Its own; empty where it cannot be had."""

    notes: str = ""
    """What it does on this machine."""

    reason: str = ""
    """Why it cannot be had, as half a sentence; empty where it can."""

    do: str = ""
    """What would help then."""


def host_of(machine: Machine) -> Host:
    """What backends are asked about."""
    return Host(system=platform.system(), isa=frozenset(machine.isa), torch=version_of("torch"))


def probe_all(host: Host, only: str | None = None) -> list[Probed]:
    """All, or one of them, in the order of their names' list."""
    asked = {name: _Asked(name, host) for name in names() if only in (None, name)}
    begin = time.monotonic()
    return [one.answer(begin) for one in asked.values()]


class _Asked:
    """One backend's process."""

    def __init__(self, name: str, host: Host) -> None:
        self._name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (until it has answered)
        document = json.dumps({**host.as_json(), "isa": sorted(host.isa)})
        self._child = subprocess.Popen(
            command("probe", name, document),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
        )

    def answer(self, begin: float) -> Probed:
        """What it has said by the time that it may take."""
        with self._said:
            while (ended := self._child.poll()) is None:
                has_passed = bool(self._heard().version)
                if time.monotonic() > begin + (PATIENCE if has_passed else LONGEST):
                    self._child.kill()
                    self._child.wait()
                    break
                time.sleep(0.01)
            found = self._heard()
        if ended:
            return found.replace(version="", reason=f"asking for it {how_ended(ended)}", do="")
        if not found.version and not found.reason:
            return found.replace(reason=f"it did not answer within {LONGEST:g} s", do="")
        return found

    def _heard(self) -> Probed:
        found = Probed(name=self._name)
        text = os.pread(self._said.fileno(), 1 << 20, 0).decode("utf-8", "replace")
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                found = _with(found, json.loads(line))
        return found


def _with(found: Probed, said: dict[str, Any]) -> Probed:
    if "unavailable" in said:
        return found.replace(version="", notes="", **said["unavailable"])
    return found.replace(**said.get("available", said))


def command(*words: str) -> list[str]:
    """What starts a backend's process."""
    # -P: the working folder must not put a module of its own in the way
    return [sys.executable, "-P", "-m", "cputrain.backends", *words]


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """What it is started with."""
    return {**clean_environment(), **variables}


def how_ended(code: int) -> str:
    """A process's end, as half a sentence."""
    if code >= 0:
        return f"ended with code {code}"
    import signal

    known = {one.value: one.name for one in signal.Signals} if os.name == "posix" else {}
    return f"was ended by {known.get(-code, f'signal {-code}')}"
