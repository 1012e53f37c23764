"""`cputrain launch`: run a script as planned."""

from __future__ import annotations

import os
import sys

from cputrain.errors import UsageError
from cputrain.launch import cluster, planning, process, target
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.options import Option, Parsed, split_quoted
from cputrain.machine import RootSource, read_machine
from cputrain.machine.ranks import SEAT
from cputrain.settings.backend import UNSAFE
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.settings.core.setting import ARITHMETIC, GROUPS
from cputrain.settings.memory_policy import SETTING as MEMORY_POLICY
from cputrain.settings.placement import SETTING as PLACEMENT
from cputrain.target import Target, TargetKind
from cputrain.variables import OCL_FALLBACK, OCL_TUNE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Machine
    from cputrain.plan import Plan

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
    Option(flag="--explain", help="print every decision of the plan with its reason first"),
    Option(flag="--dry-run", help="print an equivalent shell command and exit"),
    Option(flag="--quiet", short="-q", help="print nothing unless the script cannot be started"),
    Option(flag="--plan", takes="FILE", help="use a plan saved with: cputrain plan --json"),
)

UNSAFE_OPTION = Option(
    flag=UNSAFE,
    help="use the backend of --backend even if its results were found to be wrong",
    is_advanced=True,
)


def _value_options(title: str) -> tuple[Option, ...]:
    return tuple(
        Option(
            flag=setting.flag,
            takes=setting.takes,
            help=setting.help,
            choices=setting.choices,
            implied=setting.implied,
            is_advanced=setting.is_advanced,
        )
        for setting in USER_SETTINGS.values()
        if setting.group == title
    )


VALUE_GROUPS = tuple(
    Group(title=title, options=options) for title in GROUPS if (options := _value_options(title))
)
"""Options of the settings."""

VALUE_OPTIONS = tuple(option for group in VALUE_GROUPS for option in group.options)

SETTING_GROUPS = tuple(
    group.replace(options=(*group.options, UNSAFE_OPTION)) if group.title == ARITHMETIC else group
    for group in VALUE_GROUPS
)
"""Options of the settings, with the one that overrides a backend's verdict."""

COMMAND = Command(
    name="launch",
    form="[options] script.py [its arguments] | -m module [...] | - | --cmd -- command [...]",
    files="*.py",
    summary="Runs a training script as python would, only faster. Options after the script are "
    "passed to it. Each setting is also a CPUTRAIN_* variable and a key of cputrain.toml.",
    examples=(
        Example(line="cputrain launch train.py --epochs 3", does="python train.py --epochs 3"),
        Example(line="cputrain launch -m package.train", does="python -m package.train"),
        Example(line="cputrain launch --explain train.py", does="say what is changed, and why"),
        Example(line="cputrain launch --precision bf16 train.py", does="allow reduced precision"),
        Example(
            line="cputrain launch --nproc-per-node numa train.py", does="one rank per NUMA node"
        ),
    ),
    groups=(
        Group(title="What to run", options=TARGET_OPTIONS),
        Group(title="What to show", options=SHOW_OPTIONS),
        *SETTING_GROUPS,
        Group(title="Ranks, with torchrun's options", options=cluster.OPTIONS),
    ),
)


VARIABLES = frozenset(
    {*(setting.variable for setting in USER_SETTINGS.values()), OCL_FALLBACK, OCL_TUNE}
)
"""Variables that users may set."""

RANK_OPTIONS = (
    *VALUE_OPTIONS,
    UNSAFE_OPTION,
    *(option for option in SHOW_OPTIONS if option.flag in {"--explain", "--quiet"}),
)
"""Options that are passed on to each rank's launch."""


def main(argv: Sequence[str]) -> int:
    """Replace this process by the script, or print what would be done."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    launch_target = target.read_target(
        parsed.rest, module=parsed.has("--module"), command=parsed.has("--cmd")
    )
    program = target.find_executable(launch_target, os.environ)
    machine = read_machine(RootSource(), detail=False)
    if cluster.needs_agent(parsed, os.environ):
        agent = cluster.agent_start(parsed, launch_target, RANK_OPTIONS, machine)
        _check_rank_settings(parsed, machine)
        return _run_or_print(agent, cluster.notes_on_ranks(parsed, os.environ, machine), parsed)
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
        [
            *plan.warnings,
            *([tuning_note] if tuning_note else []),
            *_hook_warnings(parsed),
            *_notes_on_mistakes(launch_target),
        ],
        parsed,
    )


def _check_rank_settings(parsed: Parsed, machine: Machine) -> None:
    """Raise UsageError if a setting does not fit the ranks: before the agent starts them."""
    num_ranks = cluster.number_of_ranks(parsed, os.environ, machine)
    if not num_ranks.isdecimal():
        return
    rank = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": num_ranks}
    environment = {**os.environ, **rank}
    threads = planning.plan_for(parsed, machine, environment=environment).value("threads")
    request = planning.request_for(parsed, environment)
    user, most = request.setting("threads"), len(share_of(machine, request).cpus)
    if user is not None and threads > most:
        raise UsageError(
            user.where,
            f"must be at most {most} with {num_ranks} ranks, the logical CPUs that each has",
            found=user.value,
            do="Leave it out to get one for each physical core of a rank.",
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


def _notes_on_mistakes(launch_target: Target) -> list[str]:
    """Return notes on variables and options that look like ours, and have no effect."""
    has_variables = any(
        name.startswith("CPUTRAIN_") and name not in VARIABLES for name in os.environ
    )
    may_have_options = launch_target.kind is TargetKind.SCRIPT and any(
        word.startswith("--") for word in launch_target.arguments
    )
    if not has_variables and not may_have_options:
        return []
    from cputrain.launch import hints

    flags = {option.flag for option in COMMAND.options}
    return [
        *hints.notes_on_variables(os.environ, VARIABLES),
        *(
            hints.notes_on_arguments(launch_target, flags, "cputrain launch")
            if may_have_options
            else []
        ),
    ]


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
