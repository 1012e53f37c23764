"""`cputrain launch`: run a script as planned."""

from __future__ import annotations

import os
import sys

from cputrain.launch import cluster, planning, process, target
from cputrain.launch.options import Option, Parsed, parse, split_quoted, usage
from cputrain.machine import RootSource, read_machine
from cputrain.machine.ranks import SEAT
from cputrain.settings.backend import UNSAFE
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.settings.memory_policy import SETTING as MEMORY_POLICY
from cputrain.settings.placement import SETTING as PLACEMENT
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.plan import Plan

USAGE_FORM = "[options] script.py [its arguments] | -m module [...] | - | --cmd -- command [...]"

PYTHON_OPTION = Option(
    flag="--python-args",
    takes="'ARGS'",
    help="options for the interpreter: --python-args '-u -X dev'",
)

TARGET_OPTIONS = (
    Option(flag="--module", short="-m", help="the script is a module: -m package.train"),
    Option(
        flag="--cmd",
        aliases=("--no-python", "--no_python"),
        help="run any command, not a Python script: --cmd -- torchrun train.py",
    ),
    PYTHON_OPTION,
)

SHOW_OPTIONS = (
    Option(flag="--plan", takes="FILE", help="use a plan saved with: cputrain plan --json"),
    Option(flag="--dry-run", help="print an equivalent shell command and exit"),
    Option(flag="--explain", help="print every decision of the plan with its reason first"),
    Option(flag="--quiet", short="-q", help="print nothing unless the script cannot be started"),
    Option(flag="--help", short="-h", help="show this help and exit"),
)

VALUE_OPTIONS = tuple(
    Option(flag=setting.flag, takes=setting.takes, help=setting.help, choices=setting.choices)
    for setting in USER_SETTINGS.values()
)

UNSAFE_OPTION = Option(
    flag=UNSAFE, help="use the backend of --backend even if its results were found to be wrong"
)

SETTING_OPTIONS = (*VALUE_OPTIONS, UNSAFE_OPTION)

OPTIONS = (*TARGET_OPTIONS, *SHOW_OPTIONS, *SETTING_OPTIONS, *cluster.OPTIONS)


RANK_OPTIONS = (
    *SETTING_OPTIONS,
    *(option for option in SHOW_OPTIONS if option.flag in {"--explain", "--quiet"}),
)
"""Options that are passed on to each rank's launch."""


def main(argv: Sequence[str]) -> int:
    """Replace this process by the script, or print what would be done."""
    parsed = parse(argv, OPTIONS, "launch")
    if parsed.has("--help"):
        print(help_text())
        return 0
    launch_target = target.read_target(
        parsed.rest, module=parsed.has("--module"), command=parsed.has("--cmd")
    )
    program = target.find_executable(launch_target, os.environ)
    machine = read_machine(RootSource(), detail=False)
    if cluster.needs_agent(parsed, os.environ):
        return _run_or_print(
            cluster.agent_start(parsed, launch_target, RANK_OPTIONS, machine), [], parsed
        )
    cluster.exit_with_agent(os.environ)
    plan, tuning_note = planning.plan_for_script(parsed, launch_target.name, machine)
    planning.check_preload(plan)
    start = start_for_plan(plan, launch_target, program, parsed)
    if parsed.has("--explain") and not _is_silent_rank() and sys.stderr is not None:
        from cputrain.report.plans import show_plan
        from cputrain.report.terminal import console

        show_plan(console(sys.stderr), plan)
    return _run_or_print(
        start,
        [*plan.warnings, *([tuning_note] if tuning_note else []), *_hook_warnings(parsed)],
        parsed,
    )


def _run_or_print(start: process.Start, notes: Sequence[str], parsed: Parsed) -> int:
    """Execute the program, or print an equivalent shell command with --dry-run."""
    if parsed.has("--dry-run"):
        if sys.stdout is not None:  # as bytes: file names may not be decodable
            sys.stdout.buffer.write(os.fsencode(start.shell()) + b"\n")
        return 0
    process.run(start, notes, quiet=_is_quiet(parsed))


def _is_quiet(parsed: Parsed) -> bool:
    """Return whether to print nothing."""
    return parsed.has("--quiet") or _is_silent_rank()


def _is_silent_rank() -> bool:
    """Return whether an agent started this rank and it is not the node's first, which prints."""
    local_rank = os.environ.get(SEAT, os.environ.get("LOCAL_RANK", "0"))
    return cluster.AGENT_VARIABLE in os.environ and local_rank != "0"


def start_for_plan(
    plan: Plan, launch_target: Target, program: str, parsed: Parsed
) -> process.Start:
    """Return the program's start with the settings of a plan."""
    memory_policy = MEMORY_POLICY.read(plan.values)
    return process.Start(
        program=program,
        argv=launch_target.argv(_python_arguments(parsed)),
        environment=planning.environment_for(
            plan,
            quiet=_is_quiet(parsed),
            is_saved_plan=parsed.has("--plan"),
            is_python=launch_target.kind is not TargetKind.COMMAND,
        ),
        cpus=PLACEMENT.read(plan.values),
        interleave=None if memory_policy is None else memory_policy.interleave,
    )


def _python_arguments(parsed: Parsed) -> list[str]:
    return split_quoted(parsed, "--python-args")


def _hook_warnings(parsed: Parsed) -> list[str]:
    """Return a warning if an interpreter option keeps sitecustomize from running."""
    for word in _python_arguments(parsed):
        if (
            word.startswith("-")
            and not word.startswith(("--", "-X", "-W"))
            and set(word) & set("IES")
        ):
            return [
                f"the interpreter option {word} disables cputrain's sitecustomize: threads, "
                "placement and allocator are as planned, optimizers and loaders are not"
            ]
    return []


def help_text() -> str:
    """Return the text of --help."""
    return usage(
        "launch",
        USAGE_FORM,
        "Runs a training script as python would, only faster. Options after the script are passed\n"
        "to it. Each setting below is also a CPUTRAIN_* variable and a key of cputrain.toml.",
        {
            "what to run": TARGET_OPTIONS,
            "what to show": SHOW_OPTIONS,
            "settings": SETTING_OPTIONS,
            "ranks, with torchrun's options": cluster.OPTIONS,
        },
    )
