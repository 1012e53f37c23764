"""One run of the user's script under one candidate plan, and what was seen of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from cputrain.bench.compare import median
from cputrain.record import Record
from cputrain.runtime.trial import FEW, VARIABLE
from cputrain.tune.folders import COMPILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.launch.target import Target

LONGEST = 600.0
"""Seconds after which a trial is given up, by default."""

LOSSES = 12
"""How many show a fault that appears with every tenth step."""

SITE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime", "site")

NO_PLAN = '{"values":{},"environment":{},"settings":{}}'
"""What plain python is given, so that it is watched and otherwise left alone."""


class Script(Record):
    """What is tuned, and how its trials are run."""

    target: Target
    """The script and its arguments."""

    python: tuple[str, ...] = ()
    """Options for the interpreter."""

    environment: dict[str, str]
    """Without what an outer launch has set: plain python is to be plain."""

    folder: str
    """Where what trials print is kept, two files for each, and what they compile."""

    contained: bool = True
    """Whether what a trial writes is thrown away."""

    warmup: int = 3
    """Steps that are not timed."""

    steps: int = 30
    """Steps that are."""

    seconds: float = 6.0
    """After so long fewer steps will do."""


class Outcome(Record):
    """What came of a trial."""

    settings: dict[str, str] | None
    """The knobs of its plan; None for plain python."""

    fault: str = ""
    """Why it came to nothing; empty where it did."""

    times: tuple[float, ...] = ()
    """Between steps of optimizers, in seconds, without the warm-up."""

    waits: tuple[float, ...] = ()
    """How much of each was waiting for data."""

    losses: tuple[float, ...] = ()
    """What backward began with, from the first step on."""

    optimizers: int = 0
    """How many took steps."""

    uses: tuple[str, ...] = ()
    """Of "attention", "convolution" and "loader", those that were seen."""

    before_timed: float | None = None
    """Seconds from the start of the process to the first step that is timed."""

    peak_rss_bytes: int | None = None
    """Its largest resident memory."""

    took: float = 0.0
    """Seconds of the whole trial."""

    @property
    def step(self) -> float:
        """Seconds of a step: the median, of as many together as there are optimizers."""
        size = min(max(1, self.optimizers), len(self.times))
        each = [
            sum(self.times[at : at + size]) / size
            for at in range(0, len(self.times) - size + 1, size)
        ]
        return median(each)


def run_trial(
    script: Script,
    settings: dict[str, str] | None,
    *,
    disturbed: bool = False,
    thorough: bool = False,
    longest: float = LONGEST,
) -> Outcome:
    """Run it until enough was seen; `disturbed` by as much as rounding makes. Raises no fault.

    One that is `thorough` goes on for as many losses as a comparison needs, even where a step takes
    long. After `longest` seconds a trial is given up.
    """
    begin = time.monotonic()
    asked = {
        "warmup": script.warmup,
        "steps": script.steps,
        "seconds": script.seconds,
        "losses": LOSSES if thorough else 0,
        "begun": time.perf_counter(),
        "disturbed": disturbed,
    }
    watched = run_watched(script, settings, asked, longest=longest)
    return _outcome(settings, watched, time.monotonic() - begin)


class Watched(Record):
    """What came of a process of the script."""

    fault: str
    """Why it was given up; empty where it was not."""

    code: int
    """Its exit code."""

    seen: bytes
    """What the watcher within told."""

    errors: str
    """The file of what it printed to stderr."""


def run_watched(
    script: Script,
    settings: dict[str, str] | None,
    asked: dict[str, Any],
    *,
    longest: float = LONGEST,
) -> Watched:
    """Run it with a watcher that is asked for this, until the watcher ends it."""
    scratch = tempfile.mkdtemp(prefix="cputrain-trial-")
    base = os.path.join(script.folder, _file_name(script.folder, settings))
    try:
        with (
            open(f"{base}.out", "wb") as out,
            open(f"{base}.err", "wb") as err,
            tempfile.TemporaryFile() as told,
        ):
            asked = {"fd": told.fileno(), **asked}
            child = _start(script, settings, scratch, out.fileno(), err.fileno(), asked)
            code, fault = 0, ""
            try:
                code = child.wait(longest)
            except subprocess.TimeoutExpired:
                fault = f"it was not through with its steps after {longest:.0f} s"
            finally:
                _end(child)
            told.seek(0)
            seen = told.read()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Watched(fault=fault, code=code, seen=seen, errors=f"{base}.err")


def _file_name(folder: str, settings: dict[str, str] | None) -> str:
    """What files about it are called: its number, and what it is."""
    number = sum(name.endswith(".out") for name in os.listdir(folder)) + 1
    words = "-".join(f"{knob}={value}" for knob, value in (settings or {}).items())
    name = "python" if settings is None else words or "rules"
    safe = "".join(letter if letter.isalnum() or letter in "-=." else "_" for letter in name)
    return f"{number:02}-{safe[:100]}"


def _start(
    script: Script,
    settings: dict[str, str] | None,
    scratch: str,
    out: int,
    err: int,
    asked: dict[str, Any],
) -> subprocess.Popen[bytes]:
    environment = {**script.environment, VARIABLE: json.dumps(asked)}
    compiled = os.path.join(script.folder, COMPILED)
    os.makedirs(compiled, exist_ok=True)
    environment["TORCHINDUCTOR_CACHE_DIR"] = compiled  # even where one is set, as torch itself does
    plain = script.target.argv(script.python)
    if settings is None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([SITE, *([before] if before else [])])
        environment["CPUTRAIN_PLAN"] = NO_PLAN
        command: Sequence[str] = plain
    else:
        knobs = [f"--{knob.replace('_', '-')}={value}" for knob, value in settings.items()]
        command = _launched(script, knobs)
    if script.contained:
        # in a process of its own, as this one may have threads, and those do not bear a fork
        code = "import sys; from cputrain.tune.contained import run; run(*sys.argv[1:])"
        command = [sys.executable, "-P", "-c", code, scratch, compiled, *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        pass_fds=(asked["fd"],),
        start_new_session=True,
    )


def _launched(script: Script, knobs: Sequence[str]) -> list[str]:
    """The command line of a launch of it with these knobs."""
    from shlex import join

    target = script.target
    kind = {"module": ["-m"], "command": ["--cmd", "--"]}.get(str(target.kind), [])
    python = ["--python-args", join(script.python)] if script.python else []
    # -P: the working folder must not put a module of its own in the launcher's way
    return [
        *(sys.executable, "-P", "-m", "cputrain.launch", "launch", "--quiet"),
        *knobs,
        *python,
        *kind,
        target.name,
        *target.arguments,
    ]


def _end(child: subprocess.Popen[bytes]) -> None:
    """The trial and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _outcome(settings: dict[str, str] | None, watched: Watched, took: float) -> Outcome:
    document = json.loads(watched.seen) if watched.seen else {}
    times = document.get("times", [])
    warmup = document.get("warmup", 0)
    fault = fault_of(watched)
    if not fault and not times:
        fault = "no optimizer took a step"
    elif not fault and len(times) < warmup + FEW:
        fault = f"it took {len(times)} steps only, and {warmup + FEW} are needed"
    if fault:
        return Outcome(settings=settings, fault=fault, took=took)
    waits = document["waits"]
    return Outcome(
        settings=settings,
        times=tuple(b - a for a, b in zip(times[warmup - 1 :], times[warmup:], strict=False)),
        waits=tuple(b - a for a, b in zip(waits[warmup - 1 :], waits[warmup:], strict=False)),
        losses=tuple(document["losses"]),
        optimizers=document["optimizers"],
        uses=tuple(document["uses"]),
        before_timed=document["before_timed"],
        peak_rss_bytes=document["peak_rss_bytes"],
        took=took,
    )


def fault_of(watched: Watched) -> str:
    """Why it came to nothing; empty where it did not end by itself, or ended well."""
    if watched.fault or watched.code == 0:
        return watched.fault
    return f"it ended with {_ending(watched.code)}: {_last_line(watched.errors)}"


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else f"it printed nothing; see {path}"
