"""`cputrain report`: show a saved diagnosis, or compare two of them."""

from __future__ import annotations

import json

from cputrain.errors import UsageError
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.diagnose import html_file_of, print_diagnosis, write_html
from cputrain.launch.options import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = (
    Option(flag="--html", takes="FILE", help="write one diagnosis as an HTML page"),
    Option(flag="--force", help="overwrite the file of --html"),
    Option(flag="--json", help="print the comparison of two diagnoses as JSON"),
)

COMMAND = Command(
    name="report",
    form="[options] A.json [B.json]",
    files="*.json",
    summary="Shows a diagnosis saved with cputrain diagnose --json, or how much faster each part "
    "of a step is in a second one.",
    examples=(
        Example(line="cputrain report run.json", does="show a saved diagnosis"),
        Example(line="cputrain report before.json after.json", does="compare two"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)


def main(argv: Sequence[str]) -> int:
    """Show one diagnosis, or compare two."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    paths = parsed.rest
    if len(paths) not in {1, 2}:
        raise UsageError(
            "the command line", "must name one or two files", found=f"{len(paths)} of them",
            do="Create one with: cputrain diagnose --json SCRIPT > run.json",
        )  # fmt: skip
    if len(paths) == 2 and "--html" in parsed.values:
        raise UsageError(
            "--html", "shows a single diagnosis", found="two files", do="Name one of them."
        )
    if len(paths) == 1 and parsed.has("--json"):
        raise UsageError(
            "--json", "compares two diagnoses", found="one file, which is JSON already",
            do="Name a second file.",
        )  # fmt: skip
    html_file = html_file_of(parsed)
    from cputrain.diagnose import compare, read_diagnosis

    diagnoses = [read_diagnosis(path) for path in paths]
    if html_file is not None:
        write_html(html_file, diagnoses[0])
    elif len(diagnoses) == 1:
        print_diagnosis(diagnoses[0])
    else:
        comparison = compare(*diagnoses)
        if parsed.has("--json"):
            print(json.dumps(comparison.as_json(), indent=1))
        else:
            from cputrain.report.diagnoses import show_compared
            from cputrain.report.terminal import console

            show_compared(console(), comparison)
    return 0
