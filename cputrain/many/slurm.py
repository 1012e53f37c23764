"""Hand a queue over to Slurm: an array of tasks, one for each job that is not done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from shlex import join, quote

from cputrain.errors import LaunchError, NotFound, UsageError
from cputrain.machine.cpulist import format_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.many.folder import Folder
    from cputrain.many.job import Job, Outcome

MEMORY_FACTOR = 1.2
"""Factor on the largest measured peak, for the memory that a task asks for."""

MEMORY_EXTRA_BYTES = 256 << 20
"""Memory of files, the interpreter and the launcher beside it."""

TASK_VARIABLE = "SLURM_ARRAY_TASK_ID"

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED")
"""States of tasks that have not ended."""


def submit(
    jobs: Sequence[Job],
    folder: Folder,
    words: Sequence[str],
    *,
    cores: int | None = None,
    options: Sequence[str] = (),
) -> tuple[str, int]:
    """Write a batch file for the jobs that are not done, and submit it.

    Args:
        jobs: All jobs of the queue; a task's number is the place of its job.
        folder: Where outcomes are.
        words: The command line of `cputrain many` without `--slurm`.
        cores: Cores of each task; None for what earlier jobs had, or one.
        options: Further options of sbatch.

    Returns:
        The number of Slurm's job, and how many tasks it has; an empty number if all jobs are done.

    Raises:
        NotFound: There is no sbatch.
        UsageError: The tasks of an earlier submission have not ended.
        LaunchError: Slurm refused the job.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise NotFound("sbatch", "does not exist", do="Run this where Slurm's commands are.")
    check_ended(folder)
    outcomes = [folder.read_outcome(job) for job in jobs]
    numbers = [
        number
        for number, outcome in enumerate(outcomes)
        if outcome is None or not outcome.is_success
    ]
    if not numbers:
        return "", 0
    path = os.path.join(folder.path, "array.sbatch")
    text = batch_file(jobs, numbers, [each for each in outcomes if each], folder.path, words, cores)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    done = subprocess.run(
        [sbatch, "--parsable", *options, path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LaunchError(
            "sbatch",
            "refused the batch file",
            found=" ".join(done.stderr.split()) or f"exit code {done.returncode}",
            do=f"Look at {path}; pass options by --slurm-args.",
        )
    number = done.stdout.strip().partition(";")[0]
    with open(os.path.join(folder.path, "slurm_job"), "w", encoding="ascii") as file:
        file.write(number)
    return number, len(numbers)


def batch_file(
    jobs: Sequence[Job],
    numbers: Sequence[int],
    outcomes: Sequence[Outcome],
    folder: str,
    words: Sequence[str],
    cores: int | None,
) -> str:
    """Return the text of the batch file.

    Args:
        jobs: All jobs.
        numbers: Places of those to run.
        outcomes: How jobs have ended so far: cores and memory follow from them.
        folder: Folder of the queue.
        words: The command line of `cputrain many`.
        cores: Cores of each task; None for what the outcomes had, or one.
    """
    measured = [outcome.cores for outcome in outcomes if outcome.is_success and outcome.cores]
    waiting = [jobs[number] for number in numbers]
    num_cores = cores or max([*(job.cores for job in waiting if job.cores), *measured], default=1)
    lines = [
        f"--job-name={os.path.basename(folder)}",
        f"--array={format_list(tuple(numbers))}",
        "--ntasks=1",
        f"--cpus-per-task={num_cores}",
        f"--output={folder}/logs/slurm-%a.out",
    ]
    peaks = [outcome.peak_bytes for outcome in outcomes if outcome.peak_bytes]
    given = [job.memory_bytes for job in waiting if job.memory_bytes]
    if given or peaks:
        size = max(given) if given else int(MEMORY_FACTOR * max(peaks)) + MEMORY_EXTRA_BYTES
        lines.append(f"--mem={-(-size // (1 << 20))}M")
    limits = [job.timeout_s for job in waiting if job.timeout_s]
    if len(limits) == len(waiting):
        lines.append(f"--time={int(max(limits) // 60) + 2}")
    command = join([sys.executable, "-P", "-m", "cputrain.launch", "many"])
    return "\n".join([
        "#!/bin/sh",
        *(f"#SBATCH {quote(line)}" for line in lines),
        f"cd {quote(os.getcwd())} || exit 1",
        f'exec {command} --task "${TASK_VARIABLE}" --folder {quote(folder)} {join(words)}',
        "",
    ])  # fmt: skip


def check_ended(folder: Folder) -> None:
    """Raise UsageError if tasks of the last submission have not ended."""
    try:
        with open(os.path.join(folder.path, "slurm_job"), encoding="ascii") as file:
            number = file.read().strip()
    except FileNotFoundError:
        return
    squeue = shutil.which("squeue")
    if squeue is None or not number:
        return
    done = subprocess.run(
        [squeue, "--noheader", "--jobs", number, "--format=%T"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    active = [state for state in done.stdout.split() if state in ACTIVE]
    if done.returncode == 0 and active:  # an error means that Slurm has forgotten the job
        raise UsageError(
            "--folder",
            "must have no tasks in Slurm that have not ended",
            found=f"{len(active)} of Slurm's job {number}",
            do=f"Wait for them: squeue --jobs {number}; or cancel them: scancel {number}",
        )
