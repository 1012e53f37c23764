"""What users of other tools type, and what it is called here."""

from __future__ import annotations

from cputrain.machine.ranks import AGENT_PID, AGENT_THREADS, SEAT
from cputrain.suggestions import closest, did_you_mean
from cputrain.variables import PLAN, PRELOAD, REPORT, TRIAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cputrain.launch.options import Option
    from cputrain.target import Target

OPTIONS = {
    # torch.backends.xeon.run_cpu, and Intel's launcher
    "--ninstances": "--nproc-per-node N",
    "--ncores-per-instance": "--threads N",
    "--ncore-per-instance": "--threads N",
    "--cores-per-instance": "--threads N",
    "--core-list": "--placement 0-7",
    "--cores-list": "--placement 0-7",
    "--multi-instance": "--nproc-per-node numa",
    "--enable-jemalloc": "--allocator jemalloc",
    "--enable-tcmalloc": "--allocator tcmalloc",
    "--use-default-allocator": "--allocator default",
    "--memory-allocator": "--allocator NAME",
    "--disable-numactl": "--memory-policy local",
    "--log-path": "--log-dir FOLDER",
    # accelerate, mpirun and others
    "-n": "--nproc-per-node N",
    "-np": "--nproc-per-node N",
    "--np": "--nproc-per-node N",
    "--nprocs": "--nproc-per-node N",
    "--num-processes": "--nproc-per-node N",
    "--ranks": "--nproc-per-node N",
    "--world-size": "--nproc-per-node N",
    "--num-machines": "--nnodes N",
    "--machine-rank": "--node-rank N",
    "--main-process-ip": "--master-addr HOST",
    "--main-process-port": "--master-port PORT",
    "--mixed-precision": "--precision bf16",
    "--amp": "--precision bf16",
    "--autocast": "--precision bf16",
    "--bf16": "--precision bf16",
    "--fp16": "--precision bf16",
    "--dynamo-backend": "--compile on",
    "--torch-compile": "--compile on",
    "--num-cpu-threads-per-process": "--threads N",
    "--num-threads": "--threads N",
    "--nthreads": "--threads N",
    "--omp-num-threads": "--threads N",
    "-j": "--threads N",
    "--cores": "--threads N",
    "--cpus": "--placement 0-7",
    "--cpu-list": "--placement 0-7",
    "--affinity": "--placement cores",
    "--pin": "--placement cores",
    "--bind": "--placement cores",
    "--numa": "--nproc-per-node numa",
    "--interleave": "--memory-policy interleave",
    "--membind": "--memory-policy local",
    "--malloc": "--allocator NAME",
    "--ftz": "--flush-denormals on",
    # commands in general
    "-v": "--explain",
    "--verbose": "--explain",
    "--debug": "--explain",
    "--print": "--dry-run",
    "--show": "--dry-run",
    "--silent": "--quiet",
    "--config": "--plan FILE",
    "--timeout": "--budget TIME",
    "--time": "--budget TIME",
    "--seconds": "--budget TIME",
    "--max-time": "--longest TIME",
    "--rounds": "--repeats N",
    "--runs": "--repeats N",
    "--iterations": "--steps N",
    "--num-steps": "--steps N",
    "--out": "--html FILE",
    "-o": "--html FILE",
    "--output": "--html FILE",
    "--report": "--html FILE",
    "--overwrite": "--force",
    "-f": "--force",
    "-y": "--yes",
    # python's
    "-u": "--python-args=-u",
    "-O": "--python-args=-O",
    "-X": "--python-args='-X dev'",
    "-W": "--python-args='-W error'",
    "-B": "--python-args=-B",
}
"""Options of other tools by name, and the option that does the same here."""

COMMANDS = {
    "run": "launch", "exec": "launch", "start": "launch", "train": "launch", "python": "launch",
    "benchmark": "bench", "compare": "bench", "time": "bench", "speed": "bench",
    "profile": "diagnose", "analyze": "diagnose", "analyse": "diagnose", "doctor": "diagnose",
    "why": "diagnose", "check": "verify", "test": "verify",
    "optimize": "tune", "autotune": "tune", "search": "tune",
    "machine": "info", "hardware": "info", "env": "info", "topology": "info", "lscpu": "info",
    "show": "plan", "explain": "plan", "dry-run": "plan",
    "view": "report", "diff": "report",
    "completion": "completions", "-v": "version",
}  # fmt: skip
"""Commands of other tools, and the one that does the same here."""


PREFIX = "CPUTRAIN_"
"""Beginning of the names of our variables."""

INTERNAL = frozenset({PLAN, PRELOAD, REPORT, TRIAL, AGENT_PID, AGENT_THREADS, SEAT})
"""Variables that cputrain sets for its own processes."""

READS_ARGUMENTS = "arg|opt|flag|cli|typer|fire|tyro|hydra|conf|pars"
"""Pattern of a script that may read its arguments, by itself or by a library."""

PYTHONS = frozenset({"python", "python3", "python.exe", "py"})
"""Names of the interpreter, which the launcher starts itself."""


def script_hint(target: Target, *, is_launch: bool) -> str:
    """Return what to do about a script that does not exist.

    Args:
        target: The script and its arguments.
        is_launch: Whether the command is launch, which runs other commands, too.
    """
    import os
    from shlex import join
    from shutil import which

    path, folder = target.name, os.path.dirname(target.name)
    if os.path.basename(path) in PYTHONS and target.arguments:
        return f"Leave out {path}: cputrain launch {join(target.arguments)}"
    if path.startswith("-") and path != "-" and is_launch:
        return f"Options stand before --: cputrain launch {join([path, *target.arguments])}"
    if folder and not os.path.isdir(folder):
        return f"The working folder is {os.getcwd()}."
    if not folder and which(path) and is_launch:
        return f"It is a command: cputrain launch --cmd -- {join([path, *target.arguments])}"
    hint = did_you_mean(similar_script(path))
    if hint or not is_launch:
        return hint or "Check its name, or give its path."
    return "To run a command that is not a Python script: cputrain launch --cmd -- ..."


def similar_script(path: str) -> str:
    """Return the path of a script of a similar name in the same folder; "" if there is none."""
    import os

    folder, name = os.path.split(path)
    try:
        names = sorted(each for each in os.listdir(folder or ".") if each.endswith(".py"))
    except OSError:
        return ""
    similar = f"{name}.py" if f"{name}.py" in names else closest(name, names)
    return os.path.join(folder, similar) if similar else ""


def notes_on_arguments(target: Target, flags: Collection[str], command: str) -> list[str]:
    """Return a note if an argument of the script is an option of ours that it does not read.

    It reads none if it mentions nothing that reads arguments, and not this one if it adds others to
    a parser.

    Args:
        target: The script and its arguments.
        flags: Options of the command.
        command: The command: "cputrain launch".
    """
    import os
    import re

    given = [word.partition("=")[0] for word in target.arguments if word.startswith("--")]
    ours = [flag for flag in given if flag in flags]
    if not ours or not os.path.isfile(target.name):  # reading a pipe would leave nothing to run
        return []
    try:
        with open(target.name, "rb") as file:
            text = file.read().decode("utf-8", errors="replace")
    except OSError:  # the interpreter says why
        return []
    if re.search(READS_ARGUMENTS, text) and "add_argument(" not in text:
        return []  # it may read any option
    return [
        f"{flag} stands behind {target.name}, so it is passed to the script; for cputrain: "
        f"{command} {flag} ... {target.name}"
        for flag in ours
        if not any(name in text for name in (flag[2:], flag[2:].replace("-", "_")))
    ]


def tell_of_arguments(target: Target, options: Iterable[Option], command: str) -> None:
    """Print a note if an argument of the script is an option of the command."""
    import sys

    for note in notes_on_arguments(target, {option.flag for option in options}, command):
        print(f"{command}: {note}", file=sys.stderr)


def notes_on_variables(environment: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return a note for each variable whose name is almost that of one of ours.

    Args:
        environment: Variables of this process.
        known: Names of our variables.
    """
    named = {name.removeprefix(PREFIX): name for name in known}
    notes = []
    for variable in environment:
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in named and variable not in INTERNAL:
            similar = closest(name, named)
            if similar:
                notes.append(
                    f"{variable} is not a variable of cputrain; did you mean {named[similar]}?"
                )
    return notes


def option_hint(name: str, known: Collection[str]) -> str:
    """Return a question that names the option most likely meant; "" if there is none."""
    same = OPTIONS.get(name if len(name) == 2 else name.lower().replace("_", "-"), "")
    if same and same.partition(" ")[0].partition("=")[0] in known:
        return did_you_mean(same)
    return did_you_mean(closest(name, [flag for flag in known if flag.startswith("--")]))


def command_hint(word: str, known: Collection[str]) -> str:
    """Return the command most likely meant; "" if there is none."""
    return COMMANDS.get(word.lower()) or closest(word, known)
