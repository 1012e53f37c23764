"""Memory of training: predictions beside what runs take, and runs below a limit.

    python -m cputrain.bench.memory gan gpt "train.py --epochs 1"
    python -m cputrain.bench.memory --limits 0.8,0.65,0.5 resnet50 unet
    python -m cputrain.bench.memory --limits 0.8,0.65,0.5 --enforced 6 resnet50 unet

The first form compares `cputrain plan --memory` with the peaks of plain python and of a launch. The
others train below parts of python's peak; with --enforced, each run is in a memory control group of
that size, in which the kernel would kill it, and finds the limit itself. Memory is that of all
processes without files.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from cputrain.bench.learning import LAUNCH, command_of
from cputrain.bench.markdown import size
from cputrain.bench.measurement import parse_report
from cputrain.measure.statistics import loss_difference
from cputrain.memory.process_memory import anonymous_bytes
from cputrain.memory.tree import children_by_parent, descendants
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERVAL_S = 0.02
"""Time between two looks at a run's memory."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")

REMOVALS = 500
"""How often the removal of a group is tried, INTERVAL_S apart."""

PLAN = (sys.executable, "-P", "-m", "cputrain.launch", "plan", "--memory", "--json")


class Run(Record):
    """A run of a script."""

    peak_bytes: int
    """Largest sum over its processes of resident memory without files."""

    step_s: float
    """Median time of its steps; 0 if it tells none."""

    losses: tuple[float, ...] = ()
    """The losses that it tells."""

    samples_per_step: float | None = None
    """Samples of a step, or tokens, if it tells them."""

    error: str = ""
    """The last line of its error, if it failed."""


def run(command: Sequence[str]) -> Run:
    """Run a script, and look at the memory of its processes meanwhile."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        peak_bytes = 0
        while process.poll() is None:
            peak_bytes = max(peak_bytes, _resident_bytes(process.pid))
            time.sleep(INTERVAL_S)
        out.seek(0)
        err.seek(0)
        printed, lines = out.read().decode(), err.read().decode().strip().splitlines()
    if process.returncode:
        return Run(peak_bytes=peak_bytes, step_s=0.0, error=_error_of(lines))
    steps, losses, samples = parse_report(printed)
    step_s = median(steps) if steps else 0.0
    return Run(peak_bytes=peak_bytes, step_s=step_s, losses=losses, samples_per_step=samples)


def _error_of(lines: list[str]) -> str:
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it printed nothing"])[-1]


def _resident_bytes(root: int) -> int:
    """Return the resident memory without files of a process and its descendants."""
    total = 0
    for process in (root, *descendants(root, children_by_parent())):
        with suppress(OSError):  # it has ended meanwhile
            total += anonymous_bytes(process)
    return total


def predicted_bytes(command: Sequence[str]) -> int:
    """Return the peak that `cputrain plan --memory` predicts."""
    done = subprocess.run((*PLAN, *command), capture_output=True, check=True)
    peak: int = json.loads(done.stdout)["memory"]["peak_bytes"]
    return peak


def compare_prediction(word: str) -> None:
    """Print a row with the predicted and the measured peak of a script."""
    command = command_of(word)
    plain = run((sys.executable, *command))
    launched = run((*LAUNCH, *command))
    predicted = predicted_bytes(command)
    print(
        f"| {word} | {size(plain.peak_bytes)} | {size(launched.peak_bytes)} | {size(predicted)} | "
        f"{predicted / launched.peak_bytes - 1:+.1%} |",
        flush=True,
    )


def compare_limits(word: str, limits: Sequence[float]) -> None:
    """Print a row for each limit, a part of plain python's peak.

    Its columns are the peak, the time of a step for that of plain python, and the difference of
    losses to those of a launch without a limit.
    """
    command = command_of(word)
    plain = run((sys.executable, *command))
    launched = run((*LAUNCH, *command))
    for part in limits:
        limit_bytes = int(part * plain.peak_bytes)
        limited = run((*LAUNCH, "--memory-limit", str(limit_bytes), *command))
        if limited.error:
            print(f"| {word} | {part:.0%} | {size(limit_bytes)} | {limited.error} | | |")
            continue
        print(
            f"| {word} | {part:.0%} | {size(limit_bytes)} | {size(limited.peak_bytes)} | "
            f"{limited.step_s / plain.step_s:.2f} | {difference(limited, launched):.0e} |",
            flush=True,
        )


def compare_enforced(word: str, limits: Sequence[float], num_runs: int) -> None:
    """Print a row for each limit, which the kernel enforces in a number of runs.

    Its columns are the numbers of runs that ended, that were refused and that were killed, the
    largest peak, the median time of a step for that of plain python, and the largest difference of
    losses.
    """
    command = command_of(word)
    plain = run((sys.executable, *command))
    launched = run((*LAUNCH, *command))
    for part in limits:
        limit_bytes = int(part * plain.peak_bytes)
        runs = []
        for _ in range(num_runs):
            with EnforcedLimit(limit_bytes) as group:
                runs.append(run((*group.prefix, *LAUNCH, "--memory-limit", "auto", *command)))
        ended = [done for done in runs if not done.error]
        refused = [done for done in runs if "MemoryLimitError" in done.error]
        counts = f"{len(ended)} | {len(refused)} | {num_runs - len(ended) - len(refused)}"
        row = f"| {word} | {part:.0%} | {size(limit_bytes)} | {counts} "
        if ended:
            peak_bytes = max(done.peak_bytes for done in ended)
            step_s = median(done.step_s for done in ended)
            apart = max(difference(done, launched) for done in ended)
            row += f"| {size(peak_bytes)} | {step_s / plain.step_s:.2f} | {apart:.0e} |"
        else:
            row += f"| {runs[0].error} | | |"
        print(row, flush=True)


def difference(first: Run, second: Run) -> float:
    """Return the largest relative difference of two runs' losses; NaN if lengths differ."""
    apart = loss_difference(first.losses, second.losses)
    if apart is None or len(first.losses) != len(second.losses):
        return math.nan
    return apart


class EnforcedLimit:
    """A memory control group for one run, which is removed afterwards.

    Args:
        limit_bytes: The memory above which the kernel kills a process of it.

    Raises:
        SystemExit: The user may not make one.
    """

    def __init__(self, limit_bytes: int) -> None:
        is_first_version = (CONTROL_GROUPS / "memory").is_dir()
        parent = CONTROL_GROUPS / "memory" if is_first_version else CONTROL_GROUPS
        limit = "memory.limit_in_bytes" if is_first_version else "memory.max"
        self._folder = parent / f"cputrain-bench-{os.getpid()}"
        try:
            self._folder.mkdir()
            (self._folder / limit).write_text(str(limit_bytes))
        except OSError as error:
            sys.exit(
                f"--enforced needs the right to make a memory control group; found {error}. Run it "
                "as root, or in a container with the control groups writable."
            )
        self.prefix = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{self._folder}/cgroup.procs")
        """The begin of a command that is to run in the group."""

    def __enter__(self) -> EnforcedLimit:
        return self

    def __exit__(self, *_: object) -> None:
        for attempt in range(REMOVALS):
            try:
                self._folder.rmdir()
            except OSError:  # a process is still ending
                if attempt == REMOVALS - 1:
                    raise
                time.sleep(INTERVAL_S)
            else:
                return


def main() -> None:
    """Print a row for each script or workload, given with its number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", metavar="WORKLOAD:STEPS|SCRIPT")
    parser.add_argument("--limits", default="", help="parts of python's peak")
    parser.add_argument("--enforced", type=int, default=0, metavar="RUNS", help="runs of a limit")
    options = parser.parse_args()
    limits = [float(part) for part in options.limits.split(",") if part]
    for word in options.words:
        if options.enforced:
            compare_enforced(word, limits, options.enforced)
        elif limits:
            compare_limits(word, limits)
        else:
            compare_prediction(word)


if __name__ == "__main__":
    main()
