"""`cputrain diagnose`: why a script is slower than the machine allows, and what to do about it."""

from __future__ import annotations

import json
import sys

from cputrain.launch.commands.launch import PYTHON_OPTION
from cputrain.launch.options import Option, parse, split_quoted, usage, whole_number
from cputrain.machine import RootSource, read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.diagnose import Diagnosis
    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--steps", takes="N", help="steps that are timed as they are (default: 12)"),
    PYTHON_OPTION,
    Option(flag="--yes", help="run even where what the script writes cannot be thrown away"),
    Option(flag="--json", help="one JSON document with every operator"),
    Option(flag="--help", short="-h", help="show this and stop"),
)


def main(argv: Sequence[str]) -> int:
    """Run the script's first steps, and say what holds it back."""
    parsed = parse(argv, OPTIONS, "diagnose")
    if parsed.has("--help"):
        print(
            usage(
                "diagnose",
                "[options] script.py [its arguments]",
                "Runs the script's first steps under plain python, measures what this machine can\n"
                "do at best, and tells what keeps the script from it: which of six causes, by how\n"
                "much, and what to do. What the script writes is thrown away.",
                {"options": OPTIONS},
            )
        )
        return 0
    found = _diagnosed(parsed)
    if parsed.has("--json"):
        print(json.dumps(found.as_json(), indent=1))
    else:
        from cputrain.report.diagnoses import show_diagnosis
        from cputrain.report.terminal import console

        show_diagnosis(console(), found)
    return 0


def _diagnosed(parsed: Parsed) -> Diagnosis:
    from cputrain.diagnose import diagnose
    from cputrain.launch.commands.tune import script_of, watched_script

    steps = whole_number(parsed.values.get("--steps", "12"), "--steps", least=2, advice="12")
    what = script_of(parsed, "cputrain diagnose")
    python = split_quoted(parsed, "--python-args")
    with watched_script(what, python, anyhow=parsed.has("--yes")) as script:
        return diagnose(script, read_machine(RootSource()), steps=steps, tell=_tell)


def _tell(what: str) -> None:
    print(f"cputrain: {what}", file=sys.stderr, flush=True)
