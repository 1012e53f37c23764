"""`cputrain plan`: show what launch would do, and why."""

from __future__ import annotations

import json
import os
import sys
from shlex import join, quote

from cputrain.launch import planning, target
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.launch import COMMAND as LAUNCH_COMMAND
from cputrain.launch.commands.launch import SETTING_GROUPS, TARGET_OPTIONS
from cputrain.launch.options import Option
from cputrain.launch.sources import SOURCE_OPTIONS, chosen_source
from cputrain.machine import read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--all", help="show decisions that change nothing, too"),
    Option(flag="--json", help="print the plan as JSON, for launch --plan"),
    Option(flag="--why-not", takes="NAME", help="say why a value was rejected: --why-not tcmalloc"),
    Option(flag="--memory", help="run the script's first steps, and show what takes its memory"),
    Option(
        flag="--yes", help="with --memory: run even if files that it writes cannot be discarded"
    ),
    Option(flag="--plan", takes="FILE", help="show a saved plan"),
    *SOURCE_OPTIONS,
)

COMMAND = Command(
    name="plan",
    form="[options] [script.py ...]",
    files="*.py",
    summary="Shows what cputrain launch would do with the same options, and why.",
    examples=(
        Example(line="cputrain plan train.py", does="with the settings tuned for train.py"),
        Example(line="cputrain plan --memory train.py", does="what its first steps take"),
        Example(line="cputrain plan --why-not tcmalloc", does="why a value is not used"),
        Example(line="cputrain plan --json > plan.json", does="save it for launch --plan"),
    ),
    groups=(
        Group(title="What to show", options=OPTIONS),
        Group(title="What to run", options=TARGET_OPTIONS),
        *SETTING_GROUPS,
    ),
)


def main(argv: Sequence[str]) -> int:
    """Print the plan; the script's name selects its tuned settings, its content is not read."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    source = chosen_source(parsed)
    if source.live and parsed.rest:
        _check_target(parsed)
    machine = read_machine(source, detail=not source.live)
    if source.live and parsed.rest:
        plan, tuning_note = planning.plan_for_script(parsed, parsed.rest[0], machine)
        if tuning_note:
            print(f"cputrain plan: {tuning_note}", file=sys.stderr)
    else:
        plan = planning.plan_for(
            parsed, machine, environment=source.environment(), is_this_machine=source.live
        )
    if source.live:
        planning.check_preload(plan)
    if parsed.has("--memory"):
        from cputrain.launch.commands.tune import script_target
        from cputrain.launch.memory_plan import show_memory

        launch_target = script_target(parsed, COMMAND, "cputrain plan --memory")
        return show_memory(parsed, plan, launch_target, machine)
    if parsed.has("--json"):
        print(json.dumps(plan.document(), indent=1))
        return 0
    from cputrain.report.plans import show_plan, why_not
    from cputrain.report.terminal import console

    if parsed.has("--why-not"):
        print(why_not(plan, parsed.values["--why-not"]))
        return 0
    out = console()
    show_plan(out, plan, full=parsed.has("--all"))
    out.print(f"Next: {_launch_command(parsed)}", style="dim", markup=False, soft_wrap=True)
    return 0


def _check_target(parsed: Parsed) -> None:
    """Raise as launch does if the script does not exist; tell of options that stand behind it."""
    from cputrain.launch.hints import tell_of_arguments

    launch_target = target.read_target(
        parsed.rest, module=parsed.has("--module"), command=parsed.has("--cmd")
    )
    target.find_executable(launch_target, os.environ)
    tell_of_arguments(launch_target, COMMAND.options, "cputrain plan")


def _launch_command(parsed: Parsed) -> str:
    """Return the command line that launches a script with this plan."""
    flags = {option.flag for option in LAUNCH_COMMAND.options}
    options = [
        f"{flag} {quote(value)}" if value != flag else flag
        for flag, value in parsed.values.items()
        if flag in flags
    ]
    return " ".join(["cputrain launch", *options, join(parsed.rest) or "train.py"])
