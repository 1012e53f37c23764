"""What users depend on changes deliberately, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cputrain import errors
from cputrain.diagnose import compare
from cputrain.launch.commands import every_command
from cputrain.launch.commands.bench import CASE_BENCHMARKS
from cputrain.machine import Machine, Rank, read_machine
from cputrain.machine.bandwidth import Bandwidth
from cputrain.machine.capture import read_capture
from cputrain.machine.opencl import OpenCLDevice
from cputrain.plan import Request, UserValue, make_plan
from cputrain.settings.core.registry import USER_SETTINGS, VARIABLES
from tests.diagnose.samples import diagnosis

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
SOURCES = [*(TESTS.parent / "cputrain").rglob("*.py"), *(TESTS.parent / "launch").rglob("*.py")]


def options() -> str:
    """The options of each command, with what they take."""
    commands = [*every_command(), *CASE_BENCHMARKS.values()]
    return "\n".join(
        f"{command.name} {', '.join(option.names)} {option.takes}".rstrip()
        for command in commands
        for option in command.options
    )


def variables() -> str:
    """Variables of ours, and those that a plan may set."""
    named = {setting.variable for setting in USER_SETTINGS.values()}
    for path in SOURCES:
        named |= set(re.findall(r"\bCPUTRAIN_[A-Z]+(?:_[A-Z]+)*\b", path.read_text()))
    return "\n".join(["ours:", *sorted(named), "", "set by a plan:", *sorted(VARIABLES)])


def exit_codes() -> str:
    """How each error of ours ends a command."""

    def tree(kind: type[errors.CputrainError]) -> Iterator[str]:
        yield f"{kind.exit_code} {kind.__name__}"
        for below in kind.__subclasses__():
            yield from tree(below)

    others = ["0 success", "130 interrupted", "141 the reader left", "128+n killed by signal n"]
    return "\n".join([*tree(errors.CputrainError), *others])


def machines() -> Iterator[Machine]:
    """Every captured machine."""
    for path in sorted((TESTS / "machines").glob("*.json")):
        yield read_machine(read_capture(str(path)))


def info_schema() -> str:
    """Key paths of `info --json`, and the types found there."""
    found: dict[str, set[str]] = {}
    for machine in machines():
        document = json.loads(json.dumps(machine.document()))
        document["machine"]["memory"]["bandwidth"] = None
        gather(document, "", found)
    measured = Bandwidth(
        bandwidth_bytes_per_s=1, one_core_bytes_per_s=1, threads=1, buffer_bytes=1, spread=0.1,
        how="",
    )  # fmt: skip
    gather(measured.as_json(), "machine.memory.bandwidth", found)
    device = OpenCLDevice(
        name="", platform="", version="", kind="GPU", units=1, memory_bytes=1,
        largest_tensor_bytes=1, local_bytes=1, shares_memory=True, float64=True, float16=True,
    )  # fmt: skip
    for problem in (None, "why"):
        gather({"devices": [device.as_json()], "problem": problem}, "opencl", found)
    return written(found)


def plan_schema() -> str:
    """Key paths of `plan --json`, and the types found there; values by policy."""
    found: dict[str, set[str]] = {}
    wishes = (
        {"placement": "cores", "start_method": "spawn", "interop_threads": "1"},
        {"memory_policy": "interleave", "loader_cores": "1", "allocator": "/l/x.so"},
    )
    requests = [
        Request(),
        Request(rank=Rank(launcher="torchrun", index=0, count=2, binds=False)),
        *(
            Request(settings={name: UserValue(value=v, where=name) for name, v in wish.items()})
            for wish in wishes
        ),
    ]
    for machine in machines():
        for request in requests:
            try:
                document = json.loads(json.dumps(make_plan(machine, request).document()))
            except errors.UsageError:  # a core for loaders on a machine with one
                continue
            for decision in document["decisions"]:
                value = decision.pop("value")
                gather(value, f"decisions[].value ({decision['policy']})", found)
            gather(document, "", found)
    return written(found)


def diagnosis_schema() -> str:
    """Key paths of `diagnose --json`, and the types found there; and of two by `report --json`."""
    found: dict[str, set[str]] = {}
    for machine in machines():
        one = diagnosis(machine)
        gather(json.loads(json.dumps(one.as_json())), "", found)
        gather(json.loads(json.dumps(compare(one, one).as_json())), "(of two)", found)
    return written(found)


FREE = (
    "preloads", "unknown", "environment", "rejected", "settings", "kinds", "counted", "placed",
    "flops_per_s", "bandwidth_bytes_per_s", "team_seconds", "*",
)  # fmt: skip
"""Objects whose keys are data."""


def gather(value: Any, path: str, found: dict[str, set[str]]) -> None:
    """Add the types of a document to those found at each path."""
    if path:
        kind = {dict: "object", list: "array", str: "text", bool: "boolean", type(None): "null"}
        name = kind.get(type(value), "number")
        found.setdefault(path, set()).add(name)
    if isinstance(value, dict):
        for key, item in value.items():
            free = path.rpartition(".")[2] in FREE
            step = "*" if free else key
            gather(item, f"{path}.{step}" if path else step, found)
    elif isinstance(value, list):
        for item in value:
            gather(item, f"{path}[]", found)


def written(found: dict[str, set[str]]) -> str:
    """Paths and types as JSON."""
    return json.dumps({path: " or ".join(sorted(found[path])) for path in sorted(found)}, indent=1)


@pytest.mark.parametrize(
    ("name", "current"),
    [
        ("options.txt", options),
        ("environment.txt", variables),
        ("exit_codes.txt", exit_codes),
        ("info_schema.json", info_schema),
        ("plan_schema.json", plan_schema),
        ("diagnosis_schema.json", diagnosis_schema),
    ],
)
def test_what_users_depend_on_is_as_it_was(
    name: str, current: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    path = GOLDEN / name
    now = current() + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(now)
    assert path.read_text() == now, (
        f"users depend on what tests/golden/{name} holds. If the change is meant, say so in "
        "CHANGELOG.md and run: python -m pytest tests/test_golden.py --update-golden"
    )
