"""`cputrain tune`: find the fastest plan for a script by measuring, and save it for launch."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager

from cputrain.errors import UsageError
from cputrain.launch import planning, target
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.launch import PYTHON_OPTION, VALUE_GROUPS
from cputrain.launch.options import Option, split_quoted, whole_number
from cputrain.machine import RootSource, read_machine
from cputrain.quantities import parse_search_time
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult, Watcher
    from cputrain.tune.trial import Script

OPTIONS = (
    PYTHON_OPTION,
    Option(flag="--budget", takes="TIME", help="duration of the search: 90s, 5m (default: 120s)"),
    Option(flag="--steps", takes="N", help="steps to time in each trial (default: 30)"),
    Option(flag="--yes", help="run trials even if the files they write cannot be discarded"),
    Option(flag="--json", help="print a JSON document with every trial"),
)

COMMAND = Command(
    name="tune",
    form="[options] script.py [its arguments]",
    files="*.py",
    summary="Runs some steps of the script under many plans, and saves the fastest one whose "
    "losses agree with plain python's; cputrain launch uses it from then on. Settings that are "
    "given are not varied; --precision bf16 allows reduced precision.",
    examples=(
        Example(line="cputrain tune train.py", does="search for two minutes"),
        Example(line="cputrain tune --budget 10m train.py", does="try more combinations"),
        Example(line="cputrain tune --precision bf16 train.py", does="allow bf16, too"),
    ),
    groups=(Group(title="Options", options=OPTIONS), *VALUE_GROUPS),
)


def main(argv: Sequence[str]) -> int:
    """Search for the fastest plan, print the result and save it."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    launch_target = script_target(parsed, COMMAND, "cputrain tune")
    machine = read_machine(RootSource())
    return _tune(parsed, launch_target, machine)


def script_target(parsed: Parsed, options: Command, command: str) -> Target:
    """Return the script after the options; raise UsageError unless it is a file.

    A note tells of options of the command that stand behind the script.

    Args:
        parsed: The command line.
        options: The command, with its options.
        command: The command in messages: "cputrain tune".
    """
    from cputrain.launch.hints import tell_of_arguments

    launch_target = target.read_target(
        parsed.rest, usage=f"Usage: {command} [options] train.py [its arguments]"
    )
    if launch_target.kind is not TargetKind.SCRIPT or launch_target.name == "-":
        raise UsageError(
            "the script",
            "must be a file, so that its result can be saved under its path",
            found=launch_target.name,
            do=f"Run: {command} train.py",
        )
    target.find_executable(launch_target, os.environ, is_launch=False)
    tell_of_arguments(launch_target, options.options, command)
    return launch_target


def _tune(parsed: Parsed, launch_target: Target, machine: Machine) -> int:
    from cputrain.report.trials import watcher

    with watcher() as progress:
        result = search_with_options(parsed, launch_target, machine, progress)
    saved_path = save_tuned(launch_target, machine, result)
    if parsed.has("--json"):
        print(
            json.dumps({"schema_version": 1, "kept_in": saved_path, **result.as_json()}, indent=1)
        )
    else:
        _print_result(result, launch_target)
    return 0


def search_with_options(
    parsed: Parsed, launch_target: Target, machine: Machine, progress: Watcher
) -> SearchResult:
    """Search for the fastest plan with the options of a command line."""
    return find_plan(
        launch_target,
        machine,
        planning.plan_for(parsed, machine),
        budget=parse_search_time(parsed.values.get("--budget", "120"), "--budget"),
        steps=whole_number(
            parsed.values.get("--steps", "30"), "--steps", least=5, most=100_000, advice="30"
        ),
        python=split_quoted(parsed, "--python-args"),
        allow_side_effects=parsed.has("--yes"),
        progress=progress,
    )


def find_plan(
    launch_target: Target,
    machine: Machine,
    plan: Plan,
    *,
    budget: float,
    steps: int = 30,
    python: Sequence[str] = (),
    allow_side_effects: bool = False,
    progress: Watcher | None = None,
) -> SearchResult:
    """Search for the fastest plan of a script.

    Args:
        plan: Plan to begin with; the settings in it are not varied.
        budget: Seconds of the search; infinity tries every combination.
        steps: Steps to time in each trial.
        python: Options of the interpreter.
        allow_side_effects: Whether to run trials that cannot be contained.
        progress: Receives each trial.

    Raises:
        UsageError: The script trains for no steps, or its trials cannot be contained.
    """
    from cputrain.tune.exhaustive import ExhaustiveSearch
    from cputrain.tune.result import NothingToTuneError
    from cputrain.tune.search import Search

    with trial_script(launch_target, python, allow_side_effects=allow_side_effects) as script:
        script = script.replace(
            steps=steps, seconds=max(1.5, budget / 60) if budget < float("inf") else 2.0
        )
        search = (Search if budget < float("inf") else ExhaustiveSearch)(
            script,
            machine,
            plan,
            fixed={name: value for name, value in plan.settings.items() if name != "precision"},
            precision=plan.settings.get("precision", "float32"),
            budget=budget,
            watcher=progress,
        )
        try:
            return search.run()
        except NothingToTuneError as error:
            raise UsageError(
                f"the script {launch_target.name}",
                "must train for some steps under plain python",
                found=str(error),
                do=f"{error.advice} The script's output is in {script.folder}.".lstrip(),
            ) from None


@contextmanager
def trial_script(
    launch_target: Target, python: Sequence[str], *, allow_side_effects: bool
) -> Iterator[Script]:
    """Yield the script as trials run it, with a folder for its output.

    Raises:
        UsageError: Files that trials write could not be discarded, and `allow_side_effects` is
            False.
    """
    from cputrain.tune.folders import trials_folder
    from cputrain.tune.trial import Script

    contained = _check_containment(allow_side_effects=allow_side_effects)
    with trials_folder(launch_target.name) as folder:
        yield Script(
            target=launch_target,
            python=tuple(python),
            environment=planning.user_environment(os.environ),
            folder=folder,
            is_sandboxed=contained,
        )


def recorded_document(
    parsed: Parsed,
    launch_target: Target,
    settings: dict[str, str] | None,
    request: dict[str, Any],
    *,
    rule: str,
    nothing: str,
) -> Any:
    """Run a script with a recorder until that ends it, and return what it recorded.

    Args:
        parsed: The command line.
        launch_target: The script.
        settings: Settings of the launch; None for plain python.
        request: Arguments of the recorder: see `cputrain.runtime.trial`.
        rule: What the script must do, for the error.
        nothing: What the error has found if nothing was recorded.

    Raises:
        UsageError: The script failed, or nothing was recorded.
    """
    from cputrain.tune.trial import fault_of, run_watched

    python = split_quoted(parsed, "--python-args")
    with trial_script(launch_target, python, allow_side_effects=parsed.has("--yes")) as script:
        run = run_watched(script, settings, request)
        document = json.loads(run.seen) if run.seen else None
        failure = fault_of(run)
        if failure or not document:
            raise UsageError(
                f"the script {launch_target.name}",
                rule,
                found=failure or nothing,
                do=f"The script's output is in {script.folder}.",
            )
    return document


def _check_containment(*, allow_side_effects: bool) -> bool:
    """Return whether files that trials write are discarded; raise UsageError if they must be."""
    if _can_contain():
        return True
    if not allow_side_effects:
        raise UsageError(
            "the trials",
            "must not leave files behind",
            found="a system that does not allow user namespaces with overlays",
            do="If every trial may write the script's files, use --yes.",
        )
    return False


def _can_contain() -> bool:
    """Return whether trials can be contained; tested in a process that does nothing else."""
    import subprocess
    import tempfile

    code = "import sys; from cputrain.tune.sandbox import enter; sys.exit(bool(enter(sys.argv[1])))"
    with tempfile.TemporaryDirectory(prefix="cputrain-trial-") as scratch:
        command = [sys.executable, "-P", "-c", code, scratch]
        process = subprocess.run(command, capture_output=True, check=False)
    return process.returncode == 0


def save_tuned(launch_target: Target, machine: Machine, result: SearchResult) -> str | None:
    """Save the result for the next launch; return the file, or None if it could not be written."""
    from datetime import date

    from cputrain.tune.store import TunedPlan, circumstances, save

    tuned = TunedPlan(
        settings=result.settings,
        reason=result.reason,
        when=date.today().isoformat(),
        arguments=launch_target.arguments,
        evidence=result.as_json(),
    )
    try:
        conditions = circumstances(launch_target.name, machine.fingerprint(), machine.budget.cpus)
        return save(launch_target.name, conditions, tuned)
    except OSError as error:
        print(f"cputrain tune: the result cannot be saved: {error}", file=sys.stderr)
        return None


def _print_result(result: SearchResult, launch_target: Target) -> None:
    from cputrain.report.plain import result_sentences
    from cputrain.tune.folders import trials_path

    print("\n".join(result_sentences(result)))
    if not all(trial.good for trial in result.trials):
        print(f"Output of the trials: {trials_path(launch_target.name)}")
    if result.settings:
        print(f"Next: cputrain launch {launch_target.name}, which uses this plan from now on.")
