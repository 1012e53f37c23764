"""`cputrain verify`: what dividing a script's batches does to its gradients."""

from __future__ import annotations

import json

from cputrain.errors import UsageError
from cputrain.launch.commands.launch import PYTHON_OPTION
from cputrain.launch.options import Option, parse, split_quoted, usage, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--replicas", takes="N", help="parts of each batch (default: 2)"),
    Option(flag="--steps", takes="N", help="steps of optimizers to look at (default: 3)"),
    PYTHON_OPTION,
    Option(flag="--yes", help="run even where what the script writes cannot be thrown away"),
    Option(flag="--json", help="one JSON document with every tensor"),
    Option(flag="--help", short="-h", help="show this and stop"),
)

SHOWN = 12
"""Tensors of a model in its table: those that are farthest apart."""


def main(argv: Sequence[str]) -> int:
    """0 where the parts give what the whole gives; 1 where they do not."""
    parsed = parse(argv, OPTIONS, "verify")
    if parsed.has("--help"):
        print(
            usage(
                "verify",
                "[options] script.py [its arguments]",
                "Runs a few steps of the script. Each batch goes through the model whole and in\n"
                "parts, in float64 and in float32; what comes out, and every gradient, must be\n"
                "the same but for rounding. What the script writes is thrown away.",
                {"options": OPTIONS},
            )
        )
        return 0
    found = _verify(parsed)
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "models": found}, indent=1))
    else:
        _show(found, int(parsed.values.get("--replicas", "2")))
    return 0 if all(one["good"] for one in found) else 1


def _verify(parsed: Parsed) -> list[dict[str, Any]]:
    from cputrain.launch.commands.tune import script_of, watched_script
    from cputrain.tune.trial import fault_of, run_watched

    given = parsed.values
    asked = {
        "verify": whole_number(given.get("--replicas", "2"), "--replicas", least=2, advice="2"),
        "steps": whole_number(given.get("--steps", "3"), "--steps", advice="3"),
    }
    what = script_of(parsed, "cputrain verify")
    python = split_quoted(parsed, "--python-args")
    with watched_script(what, python, anyhow=parsed.has("--yes")) as script:
        watched = run_watched(script, None, asked)
        found: list[dict[str, Any]] = json.loads(watched.seen) if watched.seen else []
        fault = fault_of(watched)
        if fault or not found:
            raise UsageError(
                f"the script {what.name}",
                "must train for some steps under plain python",
                found=fault or "no model that learns was called",
                do=f"What it printed is in {script.folder}.",
            )
    return found


def _show(found: list[dict[str, Any]], replicas: int) -> None:
    from cputrain.report.terminal import console, show_table

    out = console()
    for model in found:
        title = f"{model['model']}, {replicas} parts, {model['calls']} calls"
        if model["refused"]:
            print(f"{model['model']}: its batches are not divided: {model['refused']}.")
            continue
        rows = [
            (f"{one['what']} {one['name']}".strip(), _far(one["float64"]), _far(one["float32"]))
            for one in _farthest(model["differences"])
        ]
        show_table(out, ("farthest apart", "float64", "float32"), rows, title=title)
        count = len(model["differences"])
        verdict = "the same but for rounding" if model["good"] else "NOT the same"
        print(f"{count} tensors are {verdict}.")
    if all(one["good"] for one in found):
        print("cputrain launch --replicas auto divides batches where that is faster.")


def _farthest(differences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def far(one: dict[str, Any]) -> float:
        exact = one["float64"]
        return float(one["float32"] if exact is None else exact)

    return sorted(differences, key=far, reverse=True)[:SHOWN]


def _far(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}" if value else "0"
