"""`cputrain tune`: find the fastest plan for a script by measuring, and keep it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager

from cputrain.errors import UsageError
from cputrain.launch import planning, target
from cputrain.launch.commands.launch import KNOB_OPTIONS, PYTHON_OPTION
from cputrain.launch.options import Option, parse, split_quoted, usage, whole_number
from cputrain.machine import RootSource, read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.found import Found, Watcher
    from cputrain.tune.trial import Script

OPTIONS = (
    PYTHON_OPTION,
    Option(flag="--budget", takes="SECONDS", help="how long to search (default: 120s)"),
    Option(flag="--steps", takes="N", help="steps that are timed in each trial (default: 30)"),
    Option(flag="--yes", help="run trials even where what they write cannot be thrown away"),
    Option(flag="--json", help="one JSON document with every trial"),
    Option(flag="--help", short="-h", help="show this and stop"),
)


def main(argv: Sequence[str]) -> int:
    """Search, say what was found, keep it."""
    parsed = parse(argv, (*OPTIONS, *KNOB_OPTIONS), "tune")
    if parsed.has("--help"):
        print(
            usage(
                "tune",
                "[options] script.py [its arguments]",
                "Runs the script again and again for some steps, each time under another plan,\n"
                "and keeps the fastest that learns as plain python does; cputrain launch uses it\n"
                "from then on. A setting that is given stays; --precision bf16 allows fewer bits.",
                {"options": OPTIONS, "settings": KNOB_OPTIONS},
            )
        )
        return 0
    what = script_of(parsed, "cputrain tune")
    machine = read_machine(RootSource())
    return _tune(parsed, what, machine)


def script_of(parsed: Parsed, command: str) -> target.Target:
    """The script behind the options, which must be a file."""
    what = target.read_target(parsed.rest, module=False, command=False)
    if what.kind is not target.TargetKind.SCRIPT or what.name == "-":
        raise UsageError(
            "the script",
            "must be a file, so that what is found for it can be found again",
            found=what.name,
            do=f"Say: {command} train.py",
        )
    target.find_executable(what, os.environ)
    return what


def _tune(parsed: Parsed, what: target.Target, machine: Machine) -> int:
    from cputrain.report.trials import watcher

    with watcher() as watching:
        found = find_as_asked(parsed, what, machine, watching)
    kept = keep(what, machine, found)
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "kept_in": kept, **found.as_json()}, indent=1))
    else:
        _show(found, what)
    return 0


def find_as_asked(
    parsed: Parsed, what: target.Target, machine: Machine, watching: Watcher
) -> Found:
    """Search as the options say."""
    return find_plan(
        what,
        machine,
        planning.plan_for(parsed, machine),
        budget=seconds_of(parsed.values.get("--budget", "120"), "--budget"),
        steps=whole_number(
            parsed.values.get("--steps", "30"), "--steps", least=5, most=100_000, advice="30"
        ),
        python=split_quoted(parsed, "--python-args"),
        anyhow=parsed.has("--yes"),
        watching=watching,
    )


def find_plan(
    what: target.Target,
    machine: Machine,
    plan: Plan,
    *,
    budget: float,
    steps: int = 30,
    python: Sequence[str] = (),
    anyhow: bool = False,
    watching: Watcher | None = None,
) -> Found:
    """Search, telling whoever is watching; what the plan's settings say stays.

    With a budget that has no end every combination is tried.
    """
    from cputrain.tune.exhaustive import Exhaustive
    from cputrain.tune.found import NothingToTuneError
    from cputrain.tune.search import Search

    with watched_script(what, python, anyhow=anyhow) as script:
        script = script.replace(
            steps=steps, seconds=max(1.5, budget / 60) if budget < float("inf") else 2.0
        )
        search = (Search if budget < float("inf") else Exhaustive)(
            script,
            machine,
            plan,
            fixed={name: value for name, value in plan.settings.items() if name != "precision"},
            precision=plan.settings.get("precision", "float32"),
            budget=budget,
            watcher=watching,
        )
        try:
            return search.run()
        except NothingToTuneError as error:
            raise UsageError(
                f"the script {what.name}",
                "must train for some steps under plain python",
                found=str(error),
                do=f"--steps asks for fewer. What it printed is in {script.folder}.",
            ) from None


@contextmanager
def watched_script(what: target.Target, python: Sequence[str], *, anyhow: bool) -> Iterator[Script]:
    """The script as trials run it, and where they keep what they print."""
    from cputrain.tune.folders import trials_folder
    from cputrain.tune.trial import Script

    contained = _is_contained(anyhow=anyhow)
    with trials_folder(what.name) as folder:
        yield Script(
            target=what,
            python=tuple(python),
            environment=planning.user_environment(os.environ),
            folder=folder,
            contained=contained,
        )


def _is_contained(*, anyhow: bool) -> bool:
    """Whether what a trial writes is thrown away. Raises UsageError, unless `anyhow`."""
    if _can_contain():
        return True
    if not anyhow:
        raise UsageError(
            "the trials",
            "must not leave files behind",
            found="a system that does not allow user namespaces with overlays",
            do="What the script writes would be written at each trial: say --yes if that is all "
            "right.",
        )
    return False


def _can_contain() -> bool:
    """Whether this system lets a trial be contained: tried in a process that does nothing else."""
    import subprocess
    import tempfile

    code = (
        "import sys; from cputrain.tune.contained import enter; sys.exit(bool(enter(sys.argv[1])))"
    )
    with tempfile.TemporaryDirectory(prefix="cputrain-trial-") as scratch:
        command = [sys.executable, "-P", "-c", code, scratch]
        done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0


def keep(what: target.Target, machine: Machine, found: Found) -> str | None:
    """Remember it for the next launch: the file, or None where that could not be."""
    from datetime import date

    from cputrain.tune.store import Tuned, circumstances, save

    tuned = Tuned(
        settings=found.settings,
        reason=found.reason,
        when=date.today().isoformat(),
        arguments=what.arguments,
        evidence=found.as_json(),
    )
    try:
        known = circumstances(what.name, machine.fingerprint(), machine.budget.cpus)
        return save(what.name, known, tuned)
    except OSError as error:
        print(f"cputrain tune: what was found cannot be kept: {error}", file=sys.stderr)
        return None


def _show(found: Found, what: target.Target) -> None:
    from cputrain.report.plain import said_of
    from cputrain.tune.folders import path_of_trials

    print("\n".join(said_of(found)))
    if not all(trial.good for trial in found.trials):
        print(f"What trials printed: {path_of_trials(what.name)}")
    if found.settings:
        print(f"cputrain launch {what.name} uses it from now on.")


def seconds_of(value: str, flag: str) -> float:
    """A budget as it is typed: 120, or 120s."""
    number = value.removesuffix("s")
    if not number.isascii() or not number.isdigit() or not 10 <= int(number) <= 86400:
        raise UsageError(
            flag, "must be seconds from 10 to 86400", found=repr(value), do="Try 120s."
        )
    return float(number)
