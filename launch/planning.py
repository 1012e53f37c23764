"""Plan for a command line, and the environment variables that apply a plan."""

from __future__ import annotations

import json
import os
import sys
from types import MappingProxyType

from cputrain.errors import PlanError, UsageError
from cputrain.launch import backends
from cputrain.launch.settings import read_settings
from cputrain.machine import RootSource, read_machine
from cputrain.machine.ranks import planned_rank, read_rank
from cputrain.plan import Request, UserValue, make_plan, read_plan
from cputrain.settings import allocator, backend, placement
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.variables import AT_PROCESS_START, PLAN, PRELOAD, REPORT, TRIAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.launch.options import Parsed
    from cputrain.machine import Machine
    from cputrain.plan import Plan

SITE_FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["cputrain"].__file__ or ""))),
    "cputrain",
    "runtime",
    "site",
)
"""Folder first in PYTHONPATH, whose sitecustomize the user's interpreter runs."""


def plan_for(
    parsed: Parsed,
    machine: Machine | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    tuned: Mapping[str, UserValue] = MappingProxyType({}),
    is_this_machine: bool = True,
) -> Plan:
    """Read the plan that `--plan` names, or make one for the machine and the command line.

    Args:
        machine: None stands for this machine.
        tuned: Settings that `cputrain tune` found, which the user's settings override.
        is_this_machine: Whether `machine` is this one; only then are its backends known.

    Raises:
        UsageError: A setting is invalid, or does not fit the machine.
    """
    path = parsed.values.get("--plan")
    machine = machine or read_machine(RootSource(), detail=False)
    if path is not None:
        for setting in USER_SETTINGS.values():
            if parsed.has(setting.flag):
                raise UsageError(
                    setting.flag,
                    "cannot be given with --plan",
                    do="Leave it out: the saved plan contains this decision.",
                )
        return _read_saved_plan(path, machine)
    request = request_for(parsed, environment, tuned)
    if is_this_machine:
        user_value = request.settings.get(backend.SETTING.name)
        candidates = backends.backend_candidates(
            machine, user_value, unsafe=parsed.has(backend.UNSAFE)
        )
        request = request.replace(backends=candidates)
    return make_plan(machine, request)


def plan_for_script(parsed: Parsed, script: str, machine: Machine) -> tuple[Plan, str]:
    """Return the plan for a script, and the reason for which its tuned settings are not used.

    The reason is "" if they are used, or if the script was never tuned.
    """
    if parsed.has("--plan") or TRIAL in os.environ:
        return plan_for(parsed, machine), ""
    tuned, why_not = _tuned_settings(script, machine)
    try:
        plan = plan_for(parsed, machine, tuned=tuned)
        return plan, "" if plan.value("learn") else why_not  # it is measured again now
    except UsageError as error:
        plan = plan_for(parsed, machine)  # raises if the user's settings are invalid, too
        return plan, f"the tuned plan is not used: {error}"


def _tuned_settings(script: str, machine: Machine) -> tuple[dict[str, UserValue], str]:
    """Return the settings that `cputrain tune` found for a script, or why they are not used."""
    from cputrain.tune.store import load

    tuned, why_not = load(script, machine.fingerprint(), machine.budget.cpus)
    if tuned is None:
        return {}, why_not
    measured = f"{tuned.where}: {tuned.reason}"
    return {
        name: UserValue(value=value, where=tuned.where, measured=measured)
        for name, value in tuned.settings.items()
        if (setting := USER_SETTINGS.get(name)) and value in (setting.choices or (value,))
    }, ""


def request_for(
    parsed: Parsed,
    environment: Mapping[str, str],
    tuned: Mapping[str, UserValue] = MappingProxyType({}),
) -> Request:
    """Return the plan request of a command line, in the user's own environment."""
    environment = user_environment(environment)
    # an outer launch of the same rank has narrowed the CPU mask to the rank's share already
    is_mask_narrowed = _outer_plan(environment).get("rank", "") == planned_rank(environment)
    return Request(
        settings={**tuned, **_outer_settings(os.environ), **read_settings(parsed, os.environ)},
        environment=environment,
        rank=None if is_mask_narrowed else read_rank(environment),
        python=sys.version_info[:2],
    )


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that an outer launch set, unless changed since."""
    launch_environment = _outer_plan(environment).get("environment")
    if not isinstance(launch_environment, dict):
        return dict(environment)
    return {
        name: value for name, value in environment.items() if launch_environment.get(name) != value
    }


def _outer_settings(environment: Mapping[str, str]) -> dict[str, UserValue]:
    """Return the user's settings of an outer launch."""
    settings = _outer_plan(environment).get("settings")
    return {
        name: UserValue(value=value, where=f"{setting.flag} of the outer launch")
        for name, value in (settings.items() if isinstance(settings, dict) else ())
        if isinstance(value, str)
        and (setting := USER_SETTINGS.get(name))
        and setting.is_inheritable(value)
    }


def _outer_plan(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the plan of an outer launch as JSON; empty if there is none, or it cannot be read."""
    try:
        candidates = json.loads(environment.get(PLAN, ""))
    except (ValueError, RecursionError):
        return {}
    return candidates if isinstance(candidates, dict) else {}


def environment_for(
    plan: Plan, *, quiet: bool, is_saved_plan: bool, is_python: bool = True
) -> dict[str, str]:
    """Return the variables to add to the program's environment.

    sitecustomize removes them again except PYTHONPATH and CPUTRAIN_PLAN, which child processes
    need. A command that is not Python keeps LD_PRELOAD for its child processes.

    Args:
        quiet: Whether the program prints no summary line.
        is_saved_plan: Whether `--plan` named the plan, which then holds for every rank.
        is_python: Whether the program is a Python interpreter.
    """
    previous_path = os.environ.get("PYTHONPATH", "")  # an empty entry means the working folder
    paths = (
        [path for path in previous_path.split(os.pathsep) if path != SITE_FOLDER]
        if previous_path
        else []
    )
    rank = "" if is_saved_plan else planned_rank(os.environ)
    environment = user_environment(os.environ)
    at_start = {name: value for name, value in plan.environment.items() if name in AT_PROCESS_START}
    if at_start and is_python:
        at_start[PRELOAD] = environment.get("LD_PRELOAD", "")
    return {
        **at_start,
        "PYTHONPATH": os.pathsep.join([SITE_FOLDER, *paths]),
        PLAN: plan.carried(rank=rank, environment=environment),
        REPORT: "0" if quiet else "1",
    }


def check_preload(plan: Plan) -> None:
    """Raise UsageError if the allocator cannot be preloaded; ld.so would only print a warning."""
    if "LD_PRELOAD" not in plan.environment:
        return
    path = str(allocator.SETTING.read(plan.values))
    if not os.path.isfile(path) or any(letter in path for letter in ": \t"):
        raise UsageError(
            "--allocator",
            "must be the path of a library, without spaces and colons",
            found=repr(path) if os.path.isfile(path) else f"no file {path!r}",
            do="Leave it out, or give the path of an installed library.",
        )


def _read_saved_plan(path: str, machine: Machine) -> Plan:
    """Read a saved plan; raise PlanError unless it fits this machine and its limits."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"--plan {path}",
            "must be a readable file",
            found=getattr(error, "strerror", None) or str(error),
            do="Create one with: cputrain plan --json SCRIPT > plan.json",
        ) from None
    plan = read_plan(text, f"--plan {path}")
    if plan.machine != machine.fingerprint():
        raise PlanError(
            f"--plan {path}",
            f"must be made on this machine ({machine.fingerprint()})",
            found=plan.machine,
            do="Create one here with: cputrain plan --json SCRIPT > plan.json",
        )
    unavailable = set(placement.SETTING.read(plan.values) or ()) - set(machine.budget.cpus)
    if unavailable:
        raise PlanError(
            f"--plan {path}",
            "must place the script on CPUs that this process may use",
            found=f"CPU {min(unavailable)}, which this process may not use",
            do="Create a new plan under the present limits.",
        )
    return plan
