"""`cputrain diagnose`: why a script is slower than the machine allows, and what to do about it."""

from __future__ import annotations

import json
import sys

from cputrain.launch.commands.launch import PYTHON_OPTION
from cputrain.launch.files import NewFile
from cputrain.launch.options import Option, parse, split_quoted, usage, whole_number
from cputrain.machine import RootSource, read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.diagnose import Diagnosis
    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--apply", help="try the remedies that are options: predicted against measured"),
    Option(
        flag="--precision",
        takes="float32|bf16",
        help="bf16: --apply tries those that give up bits as well",
        choices=("float32", "bf16"),
    ),
    Option(flag="--steps", takes="N", help="steps that are timed as they are (default: 12)"),
    Option(flag="--longest", takes="SECONDS", help="give a run up after so long (default: 600s)"),
    PYTHON_OPTION,
    Option(flag="--yes", help="run even where what the script writes cannot be thrown away"),
    Option(flag="--json", help="one JSON document with every operator, for cputrain report"),
    Option(flag="--html", takes="FILE", help="write one page for a browser, which needs no net"),
    Option(flag="--force", help="let --html overwrite"),
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
    page = page_of(parsed)
    found = _diagnosed(parsed)
    if parsed.has("--json"):
        print(json.dumps(found.as_json(), indent=1))
    else:
        show(found)
    if page is not None:
        write_page(page, found)
    return 0


def page_of(parsed: Parsed) -> NewFile | None:
    """The file for a page, where one is asked for."""
    path = parsed.values.get("--html")
    return None if path is None else NewFile(path, "--html", force=parsed.has("--force"))


def write_page(page: NewFile, found: Diagnosis) -> None:
    """And say where it is."""
    from cputrain.report.page import diagnosis_page

    page.write(diagnosis_page(found))
    print(f"cputrain: {page.path} shows it in a browser", file=sys.stderr)


def show(found: Diagnosis) -> None:
    """On the terminal."""
    from cputrain.report.diagnoses import show_applied, show_diagnosis
    from cputrain.report.terminal import console

    out = console()
    show_diagnosis(out, found)
    show_applied(out, found.applied)


def _diagnosed(parsed: Parsed) -> Diagnosis:
    from cputrain.diagnose import diagnose, try_remedies
    from cputrain.launch.commands.tune import script_of, seconds_of, watched_script

    steps = whole_number(parsed.values.get("--steps", "12"), "--steps", least=2, advice="12")
    longest = seconds_of(parsed.values.get("--longest", "600"), "--longest")
    what = script_of(parsed, "cputrain diagnose")
    python = split_quoted(parsed, "--python-args")
    with watched_script(what, python, anyhow=parsed.has("--yes")) as script:
        machine = read_machine(RootSource())
        found = diagnose(script, machine, steps=steps, longest=longest, tell=_tell)
        if not parsed.has("--apply"):
            return found
        reduced = parsed.values.get("--precision") == "bf16"
        return found.replace(
            applied=try_remedies(
                script, found, steps=steps, longest=longest, reduced=reduced, tell=_tell
            )
        )


def _tell(what: str) -> None:
    print(f"cputrain: {what}", file=sys.stderr, flush=True)
