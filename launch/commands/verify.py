"""`cputrain verify`: compare a script's gradients with sharded batches and with whole ones."""

from __future__ import annotations

import json

from cputrain.counting import counted
from cputrain.launch.command import Command, Example, Group
from cputrain.launch.commands.launch import PYTHON_OPTION
from cputrain.launch.options import Option, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.launch.options import Parsed

OPTIONS = (
    Option(flag="--replicas", takes="N", help="shards of each batch (default: 2)"),
    Option(
        flag="--reproducible",
        takes="N",
        implied="16",
        help="instead show stamps of the weights after each step with N shards (default: 16)",
    ),
    Option(flag="--isa", takes="WORD", help="with the instructions of cputrain launch --isa"),
    Option(
        flag="--against",
        takes="STAMP",
        help="compare the last stamp with that of another machine, or all with its --json file",
    ),
    Option(flag="--steps", takes="N", help="optimizer steps to verify (default: 3)"),
    PYTHON_OPTION,
    Option(flag="--yes", help="run even if the files that the script writes cannot be discarded"),
    Option(flag="--json", help="print a JSON document with every tensor"),
)

COMMAND = Command(
    name="verify",
    form="[options] script.py [its arguments]",
    files="*.py",
    summary="Runs a few steps of the script, and computes each batch whole and in shards, in "
    "float64 and in float32. Outputs and gradients must be equal within rounding. With "
    "--reproducible, it shows whether another machine trains with the same bits. Files that the "
    "script writes are discarded.",
    examples=(
        Example(line="cputrain verify train.py", does="two shards of each batch"),
        Example(line="cputrain verify --replicas 4 train.py", does="four"),
        Example(line="cputrain verify --reproducible train.py", does="stamps, on one machine"),
        Example(line="cputrain verify --against STAMP train.py", does="on another"),
    ),
    groups=(Group(title="Options", options=OPTIONS),),
)

MAX_SHOWN = 12
"""Rows of a model's table: the tensors with the largest differences."""


def main(argv: Sequence[str]) -> int:
    """Verify the script's models; return 0 if all tensors are equal within rounding, else 1."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    if parsed.has("--reproducible") or parsed.has("--against") or parsed.has("--isa"):
        from cputrain.launch.first_steps import verify_first_steps

        return verify_first_steps(parsed, COMMAND)
    models = _verify(parsed)
    if parsed.has("--json"):
        print(json.dumps({"schema_version": 1, "models": models}, indent=1))
    else:
        _print_models(models, int(parsed.values.get("--replicas", "2")))
    return 0 if all(model["good"] for model in models) else 1


def _verify(parsed: Parsed) -> list[dict[str, Any]]:
    """Run the script's steps, and return the comparison of each of its models."""
    from cputrain.launch.commands.tune import recorded_document, script_target

    values = parsed.values
    request = {
        "verify": whole_number(values.get("--replicas", "2"), "--replicas", least=2, advice="2"),
        "steps": whole_number(values.get("--steps", "3"), "--steps", advice="3"),
    }
    launch_target = script_target(parsed, COMMAND, "cputrain verify")
    models: list[dict[str, Any]] = recorded_document(
        parsed, launch_target, None, request,
        rule="must train for some steps under plain python",
        nothing="no call of a model with gradients",
    )  # fmt: skip
    return models


def _print_models(models: list[dict[str, Any]], replicas: int) -> None:
    from cputrain.report.terminal import console, show_table

    out = console()
    for model in models:
        title = f"{model['model']}, {counted(replicas, 'shard')}, {counted(model['calls'], 'call')}"
        if model["refused"]:
            print(f"{model['model']}: its batches are not sharded: {model['refused']}.")
            continue
        rows = [
            (
                f"{difference['what']} {difference['name']}".strip(),
                _format_difference(difference["float64"]),
                _format_difference(difference["float32"]),
            )
            for difference in _largest_differences(model["differences"])
        ]
        show_table(out, ("largest differences", "float64", "float32"), rows, title=title)
        num_tensors = len(model["differences"])
        verdict = "equal within rounding" if model["good"] else "NOT equal within rounding"
        print(f"{counted(num_tensors, 'tensor')} {'is' if num_tensors == 1 else 'are'} {verdict}.")
    if all(model["good"] for model in models):
        print("Next: cputrain launch --replicas auto, which shards batches where that is faster.")


def _largest_differences(differences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def size(difference: dict[str, Any]) -> float:
        float64_difference = difference["float64"]
        return float(difference["float32"] if float64_difference is None else float64_difference)

    return sorted(differences, key=size, reverse=True)[:MAX_SHOWN]


def _format_difference(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}" if value else "0"
