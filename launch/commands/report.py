"""`cputrain report`: a diagnosis that was kept, once more, or two of them side by side."""

from __future__ import annotations

import json

from cputrain.errors import UsageError
from cputrain.launch.commands.diagnose import page_of, show, write_page
from cputrain.launch.options import Option, parse, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = (
    Option(flag="--html", takes="FILE", help="write one run as a page for a browser"),
    Option(flag="--force", help="let --html overwrite"),
    Option(flag="--json", help="two runs side by side as one JSON document"),
    Option(flag="--help", short="-h", help="show this and stop"),
)


def main(argv: Sequence[str]) -> int:
    """Show one run, or compare two."""
    parsed = parse(argv, OPTIONS, "report")
    if parsed.has("--help"):
        print(
            usage(
                "report",
                "[options] A.json [B.json]",
                "Shows what cputrain diagnose --json found in one run, or how much faster each\n"
                "part of a step is in a second one.",
                {"options": OPTIONS},
            )
        )
        return 0
    paths = parsed.rest
    if len(paths) not in {1, 2}:
        raise UsageError(
            "cputrain report", "takes one or two files", found=f"{len(paths)} of them",
            do="Make one with: cputrain diagnose --json SCRIPT > run.json",
        )  # fmt: skip
    if len(paths) == 2 and "--html" in parsed.values:
        raise UsageError("--html", "shows one run", found="two files", do="Name one of them.")
    if len(paths) == 1 and parsed.has("--json"):
        raise UsageError("--json", "compares two runs", found="one file, which is JSON already",
                         do="Name a second one.")  # fmt: skip
    page = page_of(parsed)
    from cputrain.diagnose import compare, read_diagnosis

    runs = [read_diagnosis(path) for path in paths]
    if page is not None:
        write_page(page, runs[0])
    elif len(runs) == 1:
        show(runs[0])
    else:
        found = compare(*runs)
        if parsed.has("--json"):
            print(json.dumps(found.as_json(), indent=1))
        else:
            from cputrain.report.diagnoses import show_compared
            from cputrain.report.terminal import console

            show_compared(console(), found)
    return 0
