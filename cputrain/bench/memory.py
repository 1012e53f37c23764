"""Memory of training: predictions beside what runs take, and runs below a limit.

    python -m cputrain.bench.memory gan gpt "train.py --epochs 1"
    python -m cputrain.bench.memory --limits 0.8,0.65,0.5 resnet50 unet

The first form compares `cputrain plan --memory` with the peaks of plain python and of a launch. The
second one trains below parts of python's peak. Memory is that of all processes without files.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
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
        difference = loss_difference(limited.losses, launched.losses)
        if difference is None or len(limited.losses) != len(launched.losses):
            difference = math.nan
        print(
            f"| {word} | {part:.0%} | {size(limit_bytes)} | {size(limited.peak_bytes)} | "
            f"{limited.step_s / plain.step_s:.2f} | {difference:.0e} |",
            flush=True,
        )


def main() -> None:
    """Print a row for each script or workload, given with its number of steps."""
    words = sys.argv[1:]
    if words[:1] == ["--limits"]:
        for word in words[2:]:
            compare_limits(word, [float(part) for part in words[1].split(",")])
    else:
        for word in words:
            compare_prediction(word)


if __name__ == "__main__":
    main()
