"""`cputrain launch`: run a script as planned."""

from __future__ import annotations

import os
import sys

from cputrain.launch import cluster, planning, process, target
from cputrain.launch.options import Option, Parsed, parse, split_quoted, usage
from cputrain.machine import RootSource, read_machine
from cputrain.machine.ranks import SEAT
from cputrain.plan.backend import UNSAFE
from cputrain.plan.policies import KNOBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.plan import Plan

FORM = "[options] script.py [its arguments] | -m module [...] | - | --cmd -- command [...]"

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
    Option(flag="--plan", takes="FILE", help="carry out a plan saved with: cputrain plan --json"),
    Option(flag="--dry-run", help="print one shell command that does the same, and stop"),
    Option(flag="--explain", help="print every decision with its reason first"),
    Option(flag="--quiet", short="-q", help="not a line of ours, unless the script cannot start"),
    Option(flag="--help", short="-h", help="show this and stop"),
)

KNOB_OPTIONS = tuple(
    Option(flag=knob.flag, takes=knob.takes, help=knob.help, choices=knob.choices)
    for knob in KNOBS.values()
)

UNSAFE_OPTION = Option(
    flag=UNSAFE, help="use that backend even where it was found to be wrong, and tell what was seen"
)

SETTING_OPTIONS = (*KNOB_OPTIONS, UNSAFE_OPTION)

OPTIONS = (*TARGET_OPTIONS, *SHOW_OPTIONS, *SETTING_OPTIONS, *cluster.OPTIONS)


FOR_RANKS = (
    *SETTING_OPTIONS,
    *(one for one in SHOW_OPTIONS if one.flag in {"--explain", "--quiet"}),
)
"""What each rank's launch is told as well."""


def main(argv: Sequence[str]) -> int:
    """Become the script, or print what would be done."""
    parsed = parse(argv, OPTIONS, "launch")
    if parsed.has("--help"):
        print(help_text())
        return 0
    what = target.read_target(
        parsed.rest, module=parsed.has("--module"), command=parsed.has("--cmd")
    )
    program = target.find_executable(what, os.environ)
    machine = read_machine(RootSource(), detail=False)
    if cluster.needs_agent(parsed, os.environ):
        return _begin(cluster.agent_start(parsed, what, FOR_RANKS, machine), [], parsed)
    cluster.exit_with_agent(os.environ)
    plan, stale = planning.plan_for_script(parsed, what.name, machine)
    planning.check_preload(plan)
    start = start_of(plan, what, program, parsed)
    if parsed.has("--explain") and not _is_another_rank() and sys.stderr is not None:
        from cputrain.report.plans import show_plan
        from cputrain.report.terminal import console

        show_plan(console(sys.stderr), plan)
    return _begin(start, [*plan.warnings, *([stale] if stale else []), *_deaf(parsed)], parsed)


def _begin(start: process.Start, notes: Sequence[str], parsed: Parsed) -> int:
    """Become the program, or print the command that does the same."""
    if parsed.has("--dry-run"):
        if sys.stdout is not None:  # as bytes: file names need not be text
            sys.stdout.buffer.write(os.fsencode(start.shell()) + b"\n")
        return 0
    process.run(start, notes, quiet=_is_quiet(parsed))


def _is_quiet(parsed: Parsed) -> bool:
    """Whether nothing is to be said."""
    return parsed.has("--quiet") or _is_another_rank()


def _is_another_rank() -> bool:
    """Whether the first of this node's ranks, which an agent has started, speaks for this one."""
    seat = os.environ.get(SEAT, os.environ.get("LOCAL_RANK", "0"))
    return cluster.AGENT_VARIABLE in os.environ and seat != "0"


def start_of(plan: Plan, what: target.Target, program: str, parsed: Parsed) -> process.Start:
    """The plan as something the process can carry out."""
    memory = plan.value("memory_policy") or {}
    cpus = plan.value("placement")
    return process.Start(
        program=program,
        argv=what.argv(_python_arguments(parsed)),
        environment=planning.environment_for(
            plan,
            quiet=_is_quiet(parsed),
            is_saved_plan=parsed.has("--plan"),
            is_python=what.kind is not target.TargetKind.COMMAND,
        ),
        cpus=None if cpus is None else tuple(cpus),
        interleave=tuple(memory["interleave"]) if "interleave" in memory else None,
    )


def _python_arguments(parsed: Parsed) -> list[str]:
    return split_quoted(parsed, "--python-args")


def _deaf(parsed: Parsed) -> list[str]:
    """A warning where the interpreter is told not to look at what we leave for it."""
    for word in _python_arguments(parsed):
        if (
            word.startswith("-")
            and not word.startswith(("--", "-X", "-W"))
            and set(word) & set("IES")
        ):
            return [
                f"the interpreter option {word} hides our hook: threads, placement and allocator "
                "are as planned, optimizers and loaders are not"
            ]
    return []


def help_text() -> str:
    """What --help prints."""
    return usage(
        "launch",
        FORM,
        "Runs a training script as python would, only faster. Options after the script are its own."
        "\nEach setting below is also a CPUTRAIN_* variable and a key of cputrain.toml.",
        {
            "what to run": TARGET_OPTIONS,
            "what to show": SHOW_OPTIONS,
            "settings": SETTING_OPTIONS,
            "ranks, as torchrun has them": cluster.OPTIONS,
        },
    )
