"""Probe which backends are available, concurrently, each in a separate process."""

from __future__ import annotations

import json
import platform
import time
from contextlib import ExitStack

from cputrain.backends.backend import Host
from cputrain.backends.installed import installed_version
from cputrain.backends.process import BackendProcess, ProcessEndedError, describe_exit
from cputrain.backends.registry import backend_names
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.machine import Machine

IMPORT_TIMEOUT_S = 0.8
"""Time until which a backend that passed its probe should be imported, from the start of probing.

A backend that is still being imported then counts as available; its examination waits for the
import."""

PROBE_TIMEOUT_S = 30.0
"""Timeout of a probe, which takes under 1 s unless libraries are first read from a slow disk."""


class ProbeResult(Record):
    """A backend's description and its availability on this machine."""

    name: str
    """Name on the command line."""

    title: str = ""
    """Short description."""

    purpose: str = ""
    """Intended use according to its authors."""

    torch: str = ""
    """Supported versions of torch."""

    legacy: bool = False
    """Whether it is no longer maintained."""

    trains: bool = False
    """Whether it claims to support training."""

    evaluates: bool = False
    """Whether it claims to support evaluation while weights change."""

    environment: dict[str, str] = {}
    """Environment variables that must be set before torch is loaded."""

    version: str = ""
    """The backend's version; empty if it is unavailable."""

    notes: str = ""
    """What the backend uses on this machine."""

    reason: str = ""
    """Why it is unavailable, without capital and period; empty if it is available."""

    do: str = ""
    """What the user can do to make it available."""


def describe_host(machine: Machine) -> Host:
    """Return the host description passed to probes."""
    return Host(
        system=platform.system(), isa=frozenset(machine.isa), torch=installed_version("torch")
    )


def probe_all(host: Host, only: str | None = None) -> list[ProbeResult]:
    """Probe all backends, or only one, and return results in registry order."""
    document = json.dumps({**host.as_json(), "isa": sorted(host.isa)})
    with ExitStack() as exit_stack:
        processes = {}
        for name in backend_names():
            if only in (None, name):
                processes[name] = process = BackendProcess("probe", name, document, environment={})
                exit_stack.callback(process.end)
        start = time.monotonic()
        return [_collect_answers(name, process, start) for name, process in processes.items()]


def _collect_answers(name: str, process: BackendProcess, start: float) -> ProbeResult:
    """Collect the answers of a backend's probe until its end or timeout."""
    result = ProbeResult(name=name)
    try:
        while True:
            deadline = start + (IMPORT_TIMEOUT_S if result.version else PROBE_TIMEOUT_S)
            answer = process.receive(deadline - time.monotonic())
            if answer is None:
                break
            result = _merge_answer(result, answer)
    except ProcessEndedError as error:
        if error.code:
            how = describe_exit(error.code)
            return result.replace(version="", notes="", reason=f"its probe {how}", do="")
    if not result.version and not result.reason:
        return result.replace(reason=f"it did not answer within {PROBE_TIMEOUT_S:g} s", do="")
    return result


def _merge_answer(result: ProbeResult, answer: dict[str, Any]) -> ProbeResult:
    if "unavailable" in answer:
        return result.replace(version="", notes="", **answer["unavailable"])
    return result.replace(**answer.get("available", answer))
