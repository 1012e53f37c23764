"""One run of a command in a fresh process, and what it cost.

A script that prints, as the last JSON line of its stdout,

    {"losses": [...], "seconds_per_step": [...], "samples_per_step": 64}

is timed by its own clock, which leaves out imports and warm-up. Any other is timed as a whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from cputrain.bench.tree_memory import TreeMemory
from cputrain.errors import NotExecutable, NotFound, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    Usage = tuple[float | None, float | None, int | None, int | None, int | None]

STDERR_LINES = 20
"""How much of a failed run's stderr its error shows."""

GRACE_SECONDS = 5.0
"""How long an interrupted child may take to end by itself before it is killed."""


class Measurement(Record):
    """What one run of one command cost, and what it said."""

    name: str
    """Which of the compared commands it was."""

    round_number: int
    """In which round, counted from 1."""

    process_seconds: float
    """From start to end of the process by the wall clock."""

    step_seconds: tuple[float, ...] = ()
    """The times of the timed steps as the script reported them; empty when it reported none."""

    losses: tuple[float, ...] = ()
    """The losses of its first steps as the script reported them."""

    samples_per_step: float | None = None
    """How many samples a step handles, when the script said so."""

    user_seconds: float | None = None
    """CPU time in its own code, with that of the children it waited for."""

    system_seconds: float | None = None
    """CPU time in the kernel on its behalf, with that of the children it waited for."""

    minor_faults: int | None = None
    """Pages that were handed out without a read from disk."""

    major_faults: int | None = None
    """Pages that had to be read from disk."""

    said: str = ""
    """The line in which cputrain said what it had applied; empty for a run without it."""

    peak_rss_bytes: int | None = None
    """Its own largest resident memory: not a sum over its children, and never less than that of
    the process that started it, which Linux counts in."""

    peak_tree_bytes: int | None = None
    """The largest memory of it and all its children together; None where that was not sampled."""


def measure(
    name: str, command: Sequence[str], *, round_number: int = 1, samples_memory: bool = False
) -> Measurement:
    """Run the command to its end; raise when it cannot be started or does not exit with 0.

    With `samples_memory`, the memory of all its processes is read ten times a second.
    """
    # files, not pipes: nothing can block, and a grandchild that stays does not keep us waiting
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.perf_counter()
        child = _start(command, out, err)
        memory = TreeMemory(child.pid) if samples_memory else None
        try:
            code, usage = _wait(child)
        except BaseException:
            _end(child)
            raise
        finally:
            peak_tree_bytes = None if memory is None else memory.stop()
        seconds = time.perf_counter() - begin
        if code != 0:
            raise _failure(name, command, code, _text(err))
        steps, losses, samples = reported(_text(out))
        lines = [line for line in _text(err).splitlines() if line.startswith("cputrain: ")]
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
        said=lines[-1].removeprefix("cputrain: ") if lines else "",
        peak_rss_bytes=peak,
        peak_tree_bytes=peak_tree_bytes,
    )


def clean_environment() -> dict[str, str]:
    """Our environment without what would steer cputrain in the child."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CPUTRAIN_")}


def reported(stdout: str) -> tuple[tuple[float, ...], tuple[float, ...], float | None]:
    """Step times, losses and samples a step from the last JSON line; empty where there is none."""
    for line in reversed(stdout.splitlines()):
        if not line.strip().startswith("{"):
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue
        try:
            steps = tuple(float(seconds) for seconds in said["seconds_per_step"])
            losses = tuple(float(loss) for loss in said["losses"])
            samples = said.get("samples_per_step")
            if all(seconds > 0 for seconds in steps):
                return steps, losses, None if samples is None else float(samples)
        except (KeyError, TypeError, ValueError):
            pass  # the last JSON line is about something else
        break
    return (), (), None


def _start(command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=clean_environment(),
            # a group of its own, so that its loader processes can be ended with it
            process_group=0 if os.name == "posix" else None,
        )
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


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, Usage]:
    if not hasattr(os, "wait4"):
        return child.wait(), (None, None, None, None, None)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if os.uname().sysname == "Darwin" else 1024  # macOS counts bytes, Linux KiB
    return child.returncode, (
        used.ru_utime,
        used.ru_stime,
        used.ru_minflt,
        used.ru_majflt,
        used.ru_maxrss * unit,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and its group: politely, then not."""
    import signal

    if child.poll() is not None:
        return
    if os.name != "posix":
        child.kill()
        child.wait()
        return
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when the user cannot wait and interrupts again
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _failure(name: str, command: Sequence[str], code: int, stderr: str) -> UsageError:
    import shlex

    ended = f"exit code {code}" if code >= 0 else f"an end by signal {-code}"
    advice = f"Run it by itself to see more: {shlex.join(command)}"
    last = stderr.splitlines()[-STDERR_LINES:]
    if last:
        advice += "\nThe end of its stderr:\n" + "\n".join(f"    {line}" for line in last)
    return UsageError(f"the command {name!r}", "must exit with code 0", found=ended, do=advice)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
