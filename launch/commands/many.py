"""`cputrain many`: run many trainings beside one another, each on cores of its own."""

from __future__ import annotations

import os
import sys

from cputrain.counting import counted
from cputrain.errors import UsageError
from cputrain.launch import planning, target
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.launch import PYTHON_OPTION, VALUE_GROUPS
from cputrain.launch.options import Option, parse, split_quoted, whole_number
from cputrain.machine import RootSource, read_machine
from cputrain.quantities import parse_duration, parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.many.job import Job
    from cputrain.many.queue import Queue

JOB_OPTIONS = (
    Option(
        flag="--grid",
        takes="NAME=VALUES",
        help="a job for each value, and for each combination: --grid lr=1e-3,1e-2 --grid seed=0..7",
        is_repeatable=True,
    ),
    Option(flag="--jobs", takes="FILE", help="a job for each row of a CSV file: its parameters"),
    Option(
        flag="--template",
        takes="'WORDS'",
        help="how parameters are passed: --template '--learning-rate={lr}' (default: --lr VALUE)",
    ),
    Option(
        flag="--env",
        takes="NAME=VALUE",
        help="environment variable of the jobs; the value may have placeholders: SEED={seed}",
        is_repeatable=True,
    ),
)
"""Options that may also stand behind the script."""

QUEUE_OPTIONS = (
    Option(flag="--folder", takes="DIR", help="where outputs and results are (default: many-NAME)"),
    Option(flag="--again", help="run jobs again that are done already"),
    Option(flag="--cores", takes="N|auto", help="cores of each job (default: measured)"),
    Option(flag="--at-once", takes="N", help="largest number of jobs at the same time"),
    Option(flag="--memory", takes="SIZE", help="memory that a job needs: 2G (default: measured)"),
    Option(
        flag="--memory-limit",
        takes="SIZE",
        help="memory of all jobs together (default: what the machine or container has)",
    ),
    Option(flag="--retries", takes="N", help="start a failed job again, up to N times"),
    Option(flag="--timeout", takes="TIME", help="stop a job, as failed, after: 90s, 5m or 2h"),
    Option(flag="--dry-run", help="print the command line of each job and exit"),
    Option(flag="--json", help="print a line of JSON for each job at the end"),
)

SLURM_OPTIONS = (
    Option(flag="--slurm", help="have Slurm run the jobs, as tasks of an array"),
    Option(flag="--slurm-args", takes="'ARGS'", help="options of sbatch: --slurm-args '-p long'"),
    Option(
        flag="--task", takes="N", help="run job N alone, as a task of Slurm does", is_advanced=True
    ),
)

COMMAND_OPTIONS = (
    Option(flag="--module", short="-m", help="the script is a module: -m package.train"),
    Option(flag="--cmd", help="run any command, not a Python script: --cmd -- ./train.sh"),
    PYTHON_OPTION,
)

LAUNCH_GROUPS = tuple(
    group.replace(
        options=tuple(
            option.replace(is_advanced=True)
            for option in group.options
            if option.flag != "--memory-limit"  # here, that of all jobs together
        )
    )
    for group in VALUE_GROUPS
)
"""Options of `cputrain launch`, which runs each job; only --help-all shows them."""

COMMAND = Command(
    name="many",
    form="[options] script.py [its arguments] | jobs.toml",
    files="*.py",
    summary="Runs a script many times with different parameters, several at the same time, each "
    "on cores and memory of its own. How many cores each gets is measured while they train. The "
    "same command again continues where it was stopped: what is done is not done again."
    "\n\n"
    "--grid, --jobs, --template and --env may also stand behind the script.",
    examples=(
        Example(line="cputrain many --grid lr=1e-3,1e-2 --grid seed=0..7 train.py", does="16 jobs"),
        Example(line="cputrain many --jobs table.csv train.py --epochs 3", does="one for each row"),
        Example(line="cputrain many jobs.toml", does="jobs of a file"),
    ),
    groups=(
        Group(title="Jobs", options=JOB_OPTIONS),
        Group(title="What to run", options=COMMAND_OPTIONS),
        Group(title="How to run them", options=QUEUE_OPTIONS),
        Group(title="On other machines", options=SLURM_OPTIONS),
        *LAUNCH_GROUPS,
    ),
)


def main(argv: Sequence[str]) -> int:
    """Run all jobs, and print where the results are."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    if sys.platform != "linux":
        raise UsageError(
            "cputrain many", "needs Linux", found=sys.platform,
            do="Use cputrain launch for one training at a time.",
        )  # fmt: skip
    jobs, folder_path = _read_jobs(parsed)
    _check_jobs(jobs)
    machine = read_machine(RootSource(), detail=False)
    options = _launch_options(parsed, machine)
    if parsed.has("--dry-run"):
        _print_commands(jobs)
        return 0
    if parsed.has("--slurm"):
        return _submit(parsed, jobs, folder_path, argv)
    return _run(parsed, jobs, folder_path, machine, options)


def _read_jobs(parsed: Parsed) -> tuple[list[Job], str]:
    """Return the jobs of a command line, and the folder of their results."""
    from cputrain.many.grid import read_axis
    from cputrain.many.job_files import (
        JobDefaults,
        default_folder,
        jobs_from_rows,
        read_csv,
        read_toml,
    )

    words, behind = _split_behind(parsed.rest)
    grids = [*parsed.all("--grid"), *behind.all("--grid")]
    axes: dict[str, tuple[str, ...]] = {}
    for text in grids:
        name, choices = read_axis(text, "--grid")
        axes[name] = (*axes.get(name, ()), *choices)
    values = {**parsed.values, **behind.values}
    defaults = JobDefaults(
        axes=axes,
        template=tuple(split_quoted(parsed.replace(values=values), "--template")),
        variables=dict(map(_variable, [*parsed.all("--env"), *behind.all("--env")])),
        retries=whole_number(values.get("--retries", "0"), "--retries", least=0, advice="2"),
    )
    if "--timeout" in values:
        defaults = defaults.replace(timeout_s=parse_duration(values["--timeout"], "--timeout"))
    if "--memory" in values:
        defaults = defaults.replace(memory_bytes=parse_size(values["--memory"], "--memory"))
    table = values.get("--jobs", "")
    is_file = len(words) == 1 and words[0].endswith(".toml")
    if is_file and not parsed.has("--module") and not parsed.has("--cmd"):
        if table:
            raise UsageError("--jobs", "cannot be given with a TOML file", do="Leave one out.")
        jobs = read_toml(words[0], defaults)
        folder = default_folder(defaults, words[0])
    else:
        launch_target = target.read_target(
            words,
            module=parsed.has("--module"),
            command=parsed.has("--cmd"),
            usage="Usage: cputrain many --grid lr=1e-3,1e-2 train.py, or: cputrain many jobs.toml",
        )
        defaults = defaults.replace(target=launch_target)
        rows = read_csv(table) if table else [{}]
        jobs = list(jobs_from_rows(defaults, rows, "--grid"))
        folder = default_folder(defaults, "")
    return jobs, values.get("--folder", folder)


def _split_behind(words: Sequence[str]) -> tuple[list[str], Parsed]:
    """Return the words of the script, and the options for jobs that stand behind it, up to "--"."""
    script: list[str] = []
    ours: list[str] = []
    flags = {option.flag for option in JOB_OPTIONS}
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            script += words[index:]
            break
        flag, equals, _ = word.partition("=")
        length = 1 if equals else 2
        if script and flag in flags:
            ours += words[index : index + length]
            index += length
        else:
            script.append(word)
            index += 1
    return script, parse(ours, JOB_OPTIONS, "cputrain many")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(
            "--env", "must be a name and a value", found=repr(text), do="For example: SEED={seed}."
        )
    return name, value


def _check_jobs(jobs: Sequence[Job]) -> None:
    """Raise an error unless there are jobs, all different, whose scripts exist."""
    seen: dict[str, Job] = {}
    checked = set()
    for job in jobs:
        twin = seen.setdefault(job.key, job)
        if twin is not job:
            raise UsageError(
                "the jobs",
                "must be different",
                found=f"{twin.name} and {job.name}, which run the same command",
                do="Let a parameter stand in the arguments, or remove one of them.",
            )
        where = (job.target.kind, job.target.name)
        if where not in checked:
            checked.add(where)
            target.find_executable(job.target, {**os.environ, **job.variables})


def _launch_options(parsed: Parsed, machine: Machine) -> tuple[str, ...]:
    """Return the options of `cputrain launch` for each job."""
    planning.plan_for(parsed, machine)  # an invalid setting is an error now, not in every job
    words = []
    for group in VALUE_GROUPS:
        words += [
            f"{option.flag}={parsed.values[option.flag]}"
            for option in group.options
            if parsed.has(option.flag)
        ]
    if parsed.has("--python-args"):
        words.append(f"--python-args={parsed.values['--python-args']}")
    return tuple(words)


def _print_commands(jobs: Sequence[Job]) -> None:
    from shlex import join, quote

    for job in jobs:
        variables = [f"{name}={quote(value)}" for name, value in job.variables.items()]
        command = join(["cputrain", "launch", *job.target.launch_words])
        print(" ".join([*variables, command]))


def _submit(parsed: Parsed, jobs: Sequence[Job], folder_path: str, argv: Sequence[str]) -> int:
    """Have Slurm run the jobs that are not done; print the number of its job."""
    from cputrain.many import slurm
    from cputrain.many.folder import Folder

    folder = Folder(folder_path)
    try:
        if parsed.has("--again"):
            for job in jobs:
                folder.forget(job)
        number, num_tasks = slurm.submit(
            jobs,
            folder,
            _without_slurm(argv, len(parsed.rest)),
            cores=_cores(parsed, most=None),
            options=split_quoted(parsed, "--slurm-args"),
        )
    finally:
        folder.close()
    if not number:
        print("All jobs are done. Without --slurm, the same command writes the results.")
        return 0
    print(f"Slurm's job {number} has {counted(num_tasks, 'task')}: squeue --jobs {number}")
    print("Once they have ended, the same command without --slurm writes the results.")
    return 0


def _without_slurm(argv: Sequence[str], num_rest: int) -> list[str]:
    """Return the words of a command line without those that a task is given otherwise."""
    words, rest = list(argv[: len(argv) - num_rest]), list(argv[len(argv) - num_rest :])
    kept = []
    while words:
        word = words.pop(0)
        flag, equals, _ = word.partition("=")
        if flag in ("--slurm-args", "--folder", "--again"):
            if not equals and flag != "--again":
                words.pop(0)
        elif flag != "--slurm":
            kept.append(word)
    return [*kept, *rest]


def _cores(parsed: Parsed, *, most: int | None) -> int | None:
    """Return the number of cores of --cores; None for auto."""
    value = parsed.values.get("--cores", "auto")
    return None if value == "auto" else whole_number(value, "--cores", most=most or 1000)


def _run(
    parsed: Parsed,
    jobs: Sequence[Job],
    folder_path: str,
    machine: Machine,
    launch_options: tuple[str, ...],
) -> int:
    """Run the jobs and print the result; return the exit code."""
    from cputrain.many import slurm
    from cputrain.many.core_allocator import CoreAllocator, core_domains
    from cputrain.many.folder import Folder
    from cputrain.many.job import JobState
    from cputrain.many.memory_budget import MemoryBudget
    from cputrain.many.progress_table import job_watcher
    from cputrain.many.queue import Queue, QueueOptions

    most = machine.budget.physical_cores
    limit = parsed.values.get("--memory-limit")
    limit_bytes = None if limit is None else parse_size(limit, "--memory-limit")
    task = parsed.values.get("--task")
    number = None if task is None else whole_number(task, "--task", least=0, most=len(jobs) - 1)
    folder = Folder(folder_path, number)
    try:
        if number is not None:
            jobs = [jobs[number]]
        else:
            slurm.check_ended(folder)
        if parsed.has("--again"):
            for job in jobs:
                folder.forget(job)
        with job_watcher() as watcher:
            queue = Queue(
                jobs,
                folder,
                CoreAllocator(core_domains(machine), most),
                MemoryBudget(machine.budget.memory_bytes, limit_bytes),
                watcher,
                QueueOptions(
                    launch_options=launch_options,
                    cores=_cores(parsed, most=most),
                    max_running=whole_number(parsed.values["--at-once"], "--at-once")
                    if parsed.has("--at-once")
                    else None,
                ),
            )
            queue.run()
    finally:
        folder.close()
    _print_result(queue, folder.path, as_json=parsed.has("--json"))
    if queue.signal_number:
        return 128 + queue.signal_number
    return 0 if queue.count(JobState.DONE) == len(jobs) else 1


def _print_result(queue: Queue, folder: str, *, as_json: bool) -> None:
    import json

    from cputrain.many.folder import result_row
    from cputrain.many.job import JobState

    for fault in queue.faults:
        print(f"cputrain many: {fault}", file=sys.stderr)
    if as_json:
        for entry in queue.entries:
            if entry.outcome is not None:
                print(json.dumps(result_row(entry.job, entry.outcome)))
        return
    before = sum(entry.is_from_before for entry in queue.entries)
    parts = [f"{counted(queue.count(JobState.DONE), 'job')} done"]
    if before:
        parts[0] += f" ({before} of them before)"
    parts += [
        f"{number} {state}"
        for state in (JobState.FAILED, JobState.WAITING)
        if (number := queue.count(state))
    ]
    shown = os.path.relpath(folder)
    print(f"{', '.join(parts)}. Results: {shown}/results.csv; outputs: {shown}/logs")
    if queue.count(JobState.DONE) < len(queue.entries):
        print("The same command again runs the jobs that are not done.")
