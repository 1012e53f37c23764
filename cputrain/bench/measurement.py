"""Run a command once in a fresh process and measure its cost.

A script that prints, as the last JSON line of its stdout,

    {"losses": [...], "seconds_per_step": [...], "samples_per_step": 64}

is measured by its own step times, which exclude imports and warm-up. Any other command is measured
by the wall time of its process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time

from cputrain.bench.tree_memory import TreeMemory
from cputrain.errors import NotExecutable, NotFound, UsageError
from cputrain.measure.child import start_process
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    Usage = tuple[float | None, float | None, int | None, int | None, int | None]

NUM_STDERR_LINES = 20
"""Lines of a failed run's stderr shown in the error."""

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL for an interrupted process."""


PRINTED_LOSS = re.compile(r"loss\w{0,2}[\s:=]{1,3}([-+]?\d+\.\d+(?:e[-+]?\d+)?)", re.IGNORECASE)
"""A loss in a line that a script prints for its users."""


class Measurement(Record):
    """Cost of one run of a command, and the step times and losses that it reported."""

    name: str
    """Name of the command."""

    round_number: int
    """Number of the round, counted from 1."""

    process_seconds: float
    """Wall time from start to exit of the process."""

    step_seconds: tuple[float, ...] = ()
    """Step times that the script reported; empty if it reported none."""

    losses: tuple[float, ...] = ()
    """Losses of the first steps that the script reported."""

    samples_per_step: float | None = None
    """Samples in a batch, if the script reported them."""

    user_seconds: float | None = None
    """CPU time in user mode, including reaped children."""

    system_seconds: float | None = None
    """CPU time in kernel mode, including reaped children."""

    minor_faults: int | None = None
    """Minor page faults: served without a read from disk."""

    major_faults: int | None = None
    """Major page faults: served by a read from disk."""

    said: str = ""
    """Line of stderr in which cputrain reported the applied settings; empty without cputrain."""

    peak_rss_bytes: int | None = None
    """Peak resident set size of the process alone, not a sum over its children.

    Never less than that of the parent process, since Linux inherits it across fork and exec.
    """

    peak_tree_bytes: int | None = None
    """Peak memory of the process group; None if it was not sampled."""


def measure(
    name: str, command: Sequence[str], *, round_number: int = 1, samples_memory: bool = False
) -> Measurement:
    """Run a command to completion and measure it.

    Args:
        name: Name of the measurement.
        command: Argument list of the process.
        round_number: Number of the round, counted from 1.
        samples_memory: Whether to sample the memory of all processes ten times a second.

    Raises:
        NotFound: The command does not exist.
        NotExecutable: The command cannot be executed.
        UsageError: The command did not exit with code 0.
    """
    # files, not pipes: a full pipe blocks the child, and a surviving grandchild keeps a pipe open
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        start_s = time.perf_counter()
        process = _start(command, stdout, stderr)
        memory = TreeMemory(process.pid) if samples_memory else None
        try:
            exit_code, usage = _wait(process)
        except BaseException:
            _terminate(process)
            raise
        finally:
            peak_tree_bytes = None if memory is None else memory.stop()
        seconds = time.perf_counter() - start_s
        if exit_code != 0:
            raise _exit_error(name, command, exit_code, _read_text(stderr))
        steps, losses, samples = parse_report(_read_text(stdout))
        report_lines = [
            line for line in _read_text(stderr).splitlines() if line.startswith("cputrain: ")
        ]
    user, system, minor, major, peak = usage
    return Measurement(
        name=name,
        round_number=round_number,
        process_seconds=seconds,
        step_seconds=steps,
        losses=losses,
        samples_per_step=samples,
        user_seconds=user,
        system_seconds=system,
        minor_faults=minor,
        major_faults=major,
        said=report_lines[-1].removeprefix("cputrain: ") if report_lines else "",
        peak_rss_bytes=peak,
        peak_tree_bytes=peak_tree_bytes,
    )


def parse_report(stdout: str) -> tuple[tuple[float, ...], tuple[float, ...], float | None]:
    """Return step times, losses and samples per step from the last JSON line of stdout.

    Without such a line there are no step times, and losses are those that the script prints in its
    own words: "loss 0.25", "train_loss=0.25".
    """
    for line in reversed(stdout.splitlines()):
        if not line.strip().startswith("{"):
            continue
        try:
            report = json.loads(line)
        except ValueError:
            continue
        try:
            steps = tuple(float(seconds) for seconds in report["seconds_per_step"])
            losses = tuple(float(loss) for loss in report["losses"])
            samples = report.get("samples_per_step")
            if all(seconds > 0 for seconds in steps):
                return steps, losses, None if samples is None else float(samples)
        except (KeyError, TypeError, ValueError):
            pass  # the last JSON line has another format
        break
    return (), tuple(map(float, PRINTED_LOSS.findall(stdout))), None


def _start(command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command; raise an error of ours if it cannot be run."""
    try:
        return start_process(command, stdout, stderr)
    except FileNotFoundError as error:
        raise NotFound(
            "the command to measure", "must exist", found=command[0], do="Check its spelling."
        ) from error
    except PermissionError as error:
        raise NotExecutable(
            "the command to measure",
            "must be executable",
            found=command[0],
            do=f"Put its interpreter before it, or chmod +x {command[0]}.",
        ) from error


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, Usage]:
    """Reap the process; return its exit code and the kernel's usage figures, where available."""
    if not hasattr(os, "wait4"):
        return process.wait(), (None, None, None, None, None)
    _, status, rusage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    maxrss_unit = (
        1 if os.uname().sysname == "Darwin" else 1024
    )  # ru_maxrss: bytes on macOS, else KiB
    return process.returncode, (
        rusage.ru_utime,
        rusage.ru_stime,
        rusage.ru_minflt,
        rusage.ru_majflt,
        rusage.ru_maxrss * maxrss_unit,
    )


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group: SIGTERM first, SIGKILL after a grace period."""
    import signal

    if process.poll() is not None:
        return
    if os.name != "posix":
        process.kill()
        process.wait()
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after a second Ctrl-C
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _exit_error(name: str, command: Sequence[str], exit_code: int, stderr: str) -> UsageError:
    import shlex

    outcome = f"exit code {exit_code}" if exit_code >= 0 else f"termination by signal {-exit_code}"
    advice = f"Run the command by itself to see its output: {shlex.join(command)}"
    last_lines = stderr.splitlines()[-NUM_STDERR_LINES:]
    if last_lines:
        advice += "\nThe end of its stderr:\n" + "\n".join(f"    {line}" for line in last_lines)
    return UsageError(f"the command {name!r}", "must exit with code 0", found=outcome, do=advice)


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
