"""Jobs: what is run, under which name, and how it ended."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum

from cputrain.record import Record
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_NAME = 80
"""Longest part of a file name that is made of a job's parameters."""

KEY_LENGTH = 8
"""Hexadecimal digits of a job's key in file names."""


class JobState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    """Not started yet, or to be started again."""

    RUNNING = "running"
    """Its process runs."""

    DONE = "done"
    """Its process ended with exit code 0, in this run or in an earlier one."""

    FAILED = "failed"
    """Its process ended otherwise, as often as it may be tried."""


class Job(Record):
    """One training of a queue: a command with its parameters."""

    target: Target
    """Script, module or command, with all arguments."""

    parameters: dict[str, str] = {}
    """What distinguishes the job from the others: {"lr": "1e-3", "seed": "0"}."""

    variables: dict[str, str] = {}
    """Environment variables that are added."""

    title: str = ""
    """Name that the user gave it; empty for one made of its parameters."""

    retries: int = 0
    """How often it is started again after a failure."""

    timeout_s: float | None = None
    """Seconds after which it is stopped, and has failed."""

    cores: int | None = None
    """Cores that it gets; None for as many as are found to be best."""

    memory_bytes: int | None = None
    """Memory that it needs; None if that is measured."""

    @property
    def name(self) -> str:
        """What it is called in tables: its title, its parameters or its command."""
        if self.title:
            return self.title
        if self.parameters:
            return ",".join(f"{name}={value}" for name, value in self.parameters.items())
        return " ".join((self.target.name, *self.target.arguments))

    @property
    def key(self) -> str:
        """Digest of what it computes: the same for the same job in every run of the queue."""
        target = self.target
        what = [str(target.kind), target.name, list(target.arguments), self.variables]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """Name of its files, without an ending: readable, and different for every job."""
        readable = re.sub(r"[^\w.=,+-]+", "_", self.name)[:MAX_NAME].strip("_.-")
        return f"{readable or 'job'}-{self.key[:KEY_LENGTH]}"


class Outcome(Record):
    """How a process of a job ended."""

    exit_code: int
    """Exit code; 128 + n for signal n, as shells have it."""

    elapsed_s: float
    """Seconds for which it ran."""

    cpu_s: float = 0.0
    """CPU seconds of all its processes."""

    steps: int = 0
    """Optimizer steps that it counted; 0 if it takes none."""

    peak_bytes: int = 0
    """Largest memory of its processes together."""

    cores: int = 0
    """Cores that it ran on."""

    attempts: int = 1
    """Number of the attempt."""

    stacked: int = 1
    """Number of jobs that its process trained."""

    place: int = 0
    """Place of this job among them, from 0."""

    reason: str = ""
    """Why it was stopped from outside; empty if it ended by itself."""

    result: dict[str, Any] = {}
    """Values of the last JSON object or number that it printed."""

    error: str = ""
    """Last line of its traceback, or of its output, if it failed."""

    @property
    def is_success(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and not self.reason


def is_python(target: Target) -> bool:
    """Return whether a target is run by this interpreter."""
    return target.kind is not TargetKind.COMMAND
