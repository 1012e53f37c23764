"""Run the user's script once under a candidate plan, and measure its steps and losses."""

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
from statistics import median

from cputrain import variables
from cputrain.counting import counted
from cputrain.record import Record
from cputrain.runtime.trial import FEW
from cputrain.tune.folders import COMPILE_CACHE
from cputrain.tune.result import option_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.target import Target

LONGEST = 600.0
"""Default time limit of a trial in seconds."""

NUM_LOSSES = 12
"""Losses of a thorough trial: enough to show a fault that occurs at every tenth step."""

SITE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime", "site")
"""Folder whose sitecustomize starts cputrain's runtime in the script's process."""

NO_PLAN = '{"values":{},"environment":{},"settings":{}}'
"""Plan for plain python: it lets the recorder start, and changes nothing."""


class Script(Record):
    """Script to tune, and how its trials run."""

    target: Target
    """The script and its arguments."""

    python: tuple[str, ...] = ()
    """Options of the interpreter."""

    environment: dict[str, str]
    """Environment of the trials, without the variables of an outer `cputrain launch`."""

    folder: str
    """Folder for the trials' output, two files for each, and for the compile cache."""

    is_sandboxed: bool = True
    """Whether what a trial writes is discarded; see `cputrain.tune.sandbox`."""

    warmup: int = 3
    """Optimizer steps before timing begins."""

    steps: int = 30
    """Optimizer steps to time."""

    seconds: float = 6.0
    """Time of the timed steps after which fewer of them are enough."""


class TrialOutcome(Record):
    """Measurements of one trial, or why it failed."""

    settings: dict[str, str] | None
    """Settings of its plan that differ from the rules; None for plain python."""

    fault: str = ""
    """Why the trial failed; empty if it did not."""

    advice: str = ""
    """What helps against the fault, where that is known."""

    times: tuple[float, ...] = ()
    """Seconds between consecutive optimizer steps, without the warm-up."""

    waits: tuple[float, ...] = ()
    """Seconds of each of `times` that were spent waiting for a data loader."""

    losses: tuple[float, ...] = ()
    """Values that `backward` started from, from the first step on."""

    num_optimizers: int = 0
    """Optimizers that took steps."""

    uses: tuple[str, ...] = ()
    """Features that the script uses, of "attention", "convolution" and "loader"."""

    startup_s: float | None = None
    """Seconds from the start of the process to the first timed step."""

    peak_rss_bytes: int | None = None
    """Peak resident set size of the process."""

    elapsed_s: float = 0.0
    """Duration of the whole trial."""

    @property
    def step_s(self) -> float:
        """Median step time; with several optimizers, of the means over one step of each."""
        size = min(max(1, self.num_optimizers), len(self.times))
        means = [
            sum(self.times[at : at + size]) / size
            for at in range(0, len(self.times) - size + 1, size)
        ]
        return median(means)


def run_trial(
    script: Script,
    settings: dict[str, str] | None,
    *,
    disturbed: bool = False,
    thorough: bool = False,
    longest: float = LONGEST,
) -> TrialOutcome:
    """Run the script until enough steps are timed; a failure is in the outcome's `fault`.

    Args:
        script: The script, and how its trials run.
        settings: Settings of the launch; None for plain python.
        disturbed: Whether to add noise of the size of rounding errors to gradients.
        thorough: Whether to go on until there are enough losses for a strict comparison.
        longest: Time limit in seconds.
    """
    started_at = time.monotonic()
    arguments = {
        "warmup": script.warmup,
        "steps": script.steps,
        "seconds": script.seconds,
        "losses": NUM_LOSSES if thorough else 0,
        "begun": time.perf_counter(),
        "disturbed": disturbed,
    }
    watched = run_watched(script, settings, arguments, longest=longest)
    return _outcome(settings, watched, time.monotonic() - started_at)


class WatchedRun(Record):
    """How a run of the script with a recorder ended, and what the recorder wrote."""

    fault: str
    """Why the run was aborted; empty if it was not."""

    code: int
    """Exit code of the process; negative for the signal that ended it."""

    seen: bytes
    """JSON document of the recorder; empty if it wrote none."""

    errors: str
    """Path of the file with the run's stderr."""


def run_watched(
    script: Script,
    settings: dict[str, str] | None,
    arguments: dict[str, Any],
    *,
    longest: float = LONGEST,
) -> WatchedRun:
    """Run the script with a recorder in its process, until the recorder ends it.

    Args:
        script: The script, and how its trials run.
        settings: Settings of the launch; None for plain python.
        arguments: Arguments of the recorder, which select it, too: see `cputrain.runtime.trial`.
        longest: Time limit in seconds.
    """
    scratch = tempfile.mkdtemp(prefix="cputrain-trial-")
    base = os.path.join(script.folder, _file_name(script.folder, settings))
    try:
        with (
            open(f"{base}.out", "wb") as out,
            open(f"{base}.err", "wb") as err,
            tempfile.TemporaryFile() as output,
        ):
            arguments = {"fd": output.fileno(), **arguments}
            child = _start(script, settings, scratch, out.fileno(), err.fileno(), arguments)
            code, fault = 0, ""
            try:
                code = child.wait(longest)
            except subprocess.TimeoutExpired:
                fault = f"it did not complete its steps within {longest:.0f} s"
            finally:
                _kill(child)
            output.seek(0)
            seen = output.read()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return WatchedRun(fault=fault, code=code, seen=seen, errors=f"{base}.err")


def _file_name(folder: str, settings: dict[str, str] | None) -> str:
    """Return the base name of a trial's output files: its number and its settings."""
    number = sum(name.endswith(".out") for name in os.listdir(folder)) + 1
    words = "-".join(f"{name}={value}" for name, value in (settings or {}).items())
    name = "python" if settings is None else words or "rules"
    safe = "".join(letter if letter.isalnum() or letter in "-=." else "_" for letter in name)
    return f"{number:02}-{safe[:100]}"


def _start(
    script: Script,
    settings: dict[str, str] | None,
    scratch: str,
    out: int,
    err: int,
    arguments: dict[str, Any],
) -> subprocess.Popen[bytes]:
    """Start the process of a trial in a session of its own."""
    environment = {**script.environment, variables.TRIAL: json.dumps(arguments)}
    compile_cache = os.path.join(script.folder, COMPILE_CACHE)
    os.makedirs(compile_cache, exist_ok=True)
    # torch itself sets this variable in processes that have compiled: replace it
    environment["TORCHINDUCTOR_CACHE_DIR"] = compile_cache
    plain = script.target.argv(script.python)
    if settings is None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([SITE, *([before] if before else [])])
        environment[variables.PLAN] = NO_PLAN
        command: Sequence[str] = plain
    else:
        command = _launch_command(script, option_words(settings))
    if script.is_sandboxed:
        # in a new process: this one may have threads, and a fork of it is not safe
        code = "import sys; from cputrain.tune.sandbox import run; run(*sys.argv[1:])"
        command = [sys.executable, "-P", "-c", code, scratch, compile_cache, *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        pass_fds=(arguments["fd"],),
        start_new_session=True,
    )


def _launch_command(script: Script, options: Sequence[str]) -> list[str]:
    """Return the command line of `cputrain launch` for the script with these options."""
    from shlex import join

    python = ["--python-args", join(script.python)] if script.python else []
    # -P: modules of the working folder must not shadow those that the launcher imports
    return [
        *(sys.executable, "-P", "-m", "cputrain.launch", "launch", "--quiet"),
        *options,
        *python,
        *script.target.launch_words,
    ]


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the trial's process group and reap the first."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _outcome(
    settings: dict[str, str] | None, watched: WatchedRun, elapsed_s: float
) -> TrialOutcome:
    """Compute a trial's outcome from the recorder's document."""
    document = json.loads(watched.seen) if watched.seen else {}
    times = document.get("times", [])
    warmup = document.get("warmup", 0)
    fault, advice = fault_of(watched), ""
    if watched.fault:
        advice = "Try a longer --budget or fewer --steps."
    elif not fault and not times:
        fault = "no optimizer took a step"
        advice = "Steps of torch.optim.Optimizer and of its subclasses count."
    elif not fault and len(times) < warmup + FEW:
        fault = f"it took only {counted(len(times), 'step')}, and {warmup + FEW} are needed"
        advice = "Let it train for longer."
    if fault:
        return TrialOutcome(settings=settings, fault=fault, advice=advice, elapsed_s=elapsed_s)
    waits = document["waits"]
    return TrialOutcome(
        settings=settings,
        times=tuple(b - a for a, b in zip(times[warmup - 1 :], times[warmup:], strict=False)),
        waits=tuple(b - a for a, b in zip(waits[warmup - 1 :], waits[warmup:], strict=False)),
        losses=tuple(document["losses"]),
        num_optimizers=document["optimizers"],
        uses=tuple(document["uses"]),
        startup_s=document["before_timed"],
        peak_rss_bytes=document["peak_rss_bytes"],
        elapsed_s=elapsed_s,
    )


def fault_of(watched: WatchedRun) -> str:
    """Return why a run was aborted or failed; empty if it ended with exit code 0."""
    if watched.fault or watched.code == 0:
        return watched.fault
    return f"it ended with {_exit_text(watched.code)}: {_last_line(watched.errors)}"


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_line(path: str) -> str:
    """Return the last non-empty line of a file of stderr, which usually names the error."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else f"it printed nothing; see {path}"
