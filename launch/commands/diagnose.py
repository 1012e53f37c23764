"""`cputrain diagnose`: find out why a script is slower than the machine allows."""

from __future__ import annotations

import json
import sys

from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.launch import PYTHON_OPTION
from cputrain.launch.files import NewFile
from cputrain.launch.options import Option, split_quoted, whole_number
from cputrain.machine import RootSource, read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.diagnose import Diagnosis
    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--apply", help="measure the suggested options, and compare with the prediction"),
    Option(
        flag="--precision",
        takes="float32|bf16",
        help="bf16: --apply may try options that reduce precision (default: float32)",
        choices=("float32", "bf16"),
    ),
    Option(flag="--steps", takes="N", help="steps to time without a profiler (default: 12)"),
    Option(flag="--longest", takes="TIME", help="end a run after this time (default: 600s)"),
    PYTHON_OPTION,
    Option(flag="--yes", help="run even if the files that the script writes cannot be discarded"),
    Option(flag="--json", help="print a JSON document with every operator, for cputrain report"),
    Option(flag="--html", takes="FILE", help="write an HTML page that works offline"),
    Option(flag="--force", help="overwrite the file of --html"),
)

COMMAND = Command(
    name="diagnose",
    form="[options] script.py [its arguments]",
    files="*.py",
    summary="Runs the script's first steps under plain python, and measures the peak throughput "
    "and bandwidth of the machine. Names which of seven causes keep the script from them, what "
    "each costs, and the remedy. Files that the script writes are discarded.",
    examples=(
        Example(line="cputrain diagnose train.py", does="print causes and remedies"),
        Example(line="cputrain diagnose --apply train.py", does="measure the remedies, too"),
        Example(line="cputrain diagnose --html page.html train.py", does="write a page"),
        Example(line="cputrain diagnose --json train.py > run.json", does="save it for report"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)


def main(argv: Sequence[str]) -> int:
    """Diagnose the script's first steps, and print the result or write it to files."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    html_file = html_file_of(parsed)
    diagnosis = _run_diagnosis(parsed)
    if parsed.has("--json"):
        print(json.dumps(diagnosis.as_json(), indent=1))
    else:
        print_diagnosis(diagnosis)
    if html_file is not None:
        write_html(html_file, diagnosis)
    return 0


def html_file_of(parsed: Parsed) -> NewFile | None:
    """Return the file that --html names; None without --html."""
    path = parsed.values.get("--html")
    return None if path is None else NewFile(path, "--html", force=parsed.has("--force"))


def write_html(html_file: NewFile, diagnosis: Diagnosis) -> None:
    """Write a diagnosis as an HTML page, and print the path to standard error."""
    from cputrain.report.page import diagnosis_page

    html_file.write(diagnosis_page(diagnosis))
    print(f"cputrain: open {html_file.path} in a browser", file=sys.stderr)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print a diagnosis on the terminal."""
    from cputrain.report.diagnoses import show_applied, show_diagnosis
    from cputrain.report.terminal import console

    out = console()
    show_diagnosis(out, diagnosis)
    show_applied(out, diagnosis)


def _run_diagnosis(parsed: Parsed) -> Diagnosis:
    """Diagnose the script, and with --apply measure the suggested options."""
    from cputrain.diagnose import diagnose, try_remedies
    from cputrain.launch.commands.tune import script_target, trial_script
    from cputrain.quantities import parse_search_time

    steps = whole_number(parsed.values.get("--steps", "12"), "--steps", least=2, advice="12")
    max_seconds = parse_search_time(parsed.values.get("--longest", "600"), "--longest")
    launch_target = script_target(parsed, COMMAND, "cputrain diagnose")
    python = split_quoted(parsed, "--python-args")
    with trial_script(launch_target, python, allow_side_effects=parsed.has("--yes")) as script:
        machine = read_machine(RootSource())
        diagnosis = diagnose(
            script, machine, steps=steps, longest=max_seconds, tell=_print_progress
        )
        if not parsed.has("--apply"):
            return diagnosis
        allow_bf16 = parsed.values.get("--precision") == "bf16"
        return diagnosis.replace(
            applied=try_remedies(
                script,
                diagnosis,
                steps=steps,
                longest=max_seconds,
                reduced=allow_bf16,
                tell=_print_progress,
            )
        )


def _print_progress(message: str) -> None:
    print(f"cputrain: {message}", file=sys.stderr, flush=True)
