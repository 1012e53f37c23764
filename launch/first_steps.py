"""Stamps of the weights after the first steps, compared with those of another machine."""

from __future__ import annotations

import json
import os
import re

from cputrain.errors import UsageError
from cputrain.launch.options import whole_number
from cputrain.reproduce import NUM_SHOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.launch.command import Command
    from cputrain.launch.options import Parsed

NUM_STEPS, NUM_SHARDS = "3", "16"
"""Defaults of the options, as text."""

STAMP = re.compile(r"[0-9a-f]{8,64}")
"""A stamp, or its first digits."""


def verify_first_steps(parsed: Parsed, command: Command) -> int:
    """Run the first steps, and show their stamps; return 1 if they differ from those expected.

    Raises:
        UsageError: An option is wrong, or the script takes no steps.
    """
    from cputrain.launch.commands.tune import recorded_document, script_target

    if parsed.has("--replicas"):
        raise UsageError(
            "--replicas",
            "must be set without --reproducible, --isa and --against",
            found=f"--replicas {parsed.values['--replicas']}",
            do="Leave it out: --reproducible N has N shards.",
        )
    expected = _expected(parsed)
    values = {**expected.get("options", {}), **parsed.values}
    num_shards = whole_number(
        values.get("--reproducible", NUM_SHARDS), "--reproducible", advice=NUM_SHARDS
    )
    num_steps = whole_number(values.get("--steps", NUM_STEPS), "--steps", advice=NUM_STEPS)
    settings = {"reproducible": str(num_shards)}
    if "--isa" in values:
        settings["isa"] = values["--isa"]
    recorded = recorded_document(
        parsed, script_target(parsed, command, "cputrain verify"), settings, {"stamps": num_steps},
        rule="must train for some steps", nothing="no optimizer took a step",
    )  # fmt: skip
    steps = recorded["steps"]
    options = {f"--{name}": value for name, value in settings.items()}
    options["--steps"] = str(len(steps))
    difference = _difference(recorded, expected)
    if parsed.has("--json"):
        document = {
            "schema_version": 1, "options": options, **recorded, "difference": difference,
        }  # fmt: skip
        print(json.dumps(document, indent=1))
    else:
        _print(parsed, options, steps, difference)
    return int(difference is not None)


def _expected(parsed: Parsed) -> dict[str, Any]:
    """Return the document of another machine, or one with the last stamp alone.

    Raises:
        UsageError: It is neither a stamp nor a file that `verify --json` has written.
    """
    word = parsed.values.get("--against")
    if word is None:
        return {}
    if not os.path.exists(word) and STAMP.fullmatch(word):
        return {"last": word}
    description = f"{word!r}, which is no file" if not os.path.exists(word) else repr(word)
    try:
        with open(word, encoding="utf-8") as file:
            document = json.load(file)
        if [step["tensors"].keys() for step in document["steps"]] and document["options"].keys():
            return {name: document[name] for name in ("options", "torch", "steps")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UsageError(
        "--against",
        "must be a stamp, of 8 digits or more, or a file that `cputrain verify --reproducible "
        "--json` has written",
        found=description,
        do="On the other machine: cputrain verify --reproducible train.py",
    )


def _difference(recorded: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """Return what differs from the other machine, in words; None if nothing does."""
    steps = recorded["steps"]
    if "last" in expected and not steps[-1]["weights"].startswith(expected["last"]):
        return f"{expected['last'][:NUM_SHOWN]} there"
    for number, (here, there) in enumerate(zip(steps, expected.get("steps", ()), strict=False), 1):
        names = [name for name in here["tensors"] if name not in there["tensors"]]
        names += [name for name in there["tensors"] if name not in here["tensors"]]
        if names:
            return f"{names[0]} is not on both machines"
        names = [name for name, stamp in here["tensors"].items() if there["tensors"][name] != stamp]
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            version = expected["torch"]
            cause = "" if version == recorded["torch"] else f", where torch is {version}"
            return f"{names[0]}{others}, from step {number} on{cause}"
    if "steps" in expected and len(expected["steps"]) != len(steps):
        return f"{len(expected['steps'])} steps there, {len(steps)} here"
    return None


def _print(
    parsed: Parsed, options: dict[str, str], steps: list[dict[str, Any]], difference: str | None
) -> None:
    from cputrain.report.terminal import console, show_table

    rows = [(str(number), step["weights"][:NUM_SHOWN]) for number, step in enumerate(steps, 1)]
    show_table(console(), ("step", "weights"), rows)
    if difference is not None:
        print(f"The weights are NOT those of the other machine: {difference}.")
        print(
            "Next: the same version of torch and the same --isa on both; docs/guide/reproducible.md"
        )
    elif parsed.has("--against"):
        print("The weights are those of the other machine, in every bit.")
    else:
        words = " ".join(f"{flag} {value}" for flag, value in options.items())
        script = " ".join(parsed.rest)
        stamp = steps[-1]["weights"][:NUM_SHOWN]
        print(f"Next: on another machine, cputrain verify --against {stamp} {words} {script}")
