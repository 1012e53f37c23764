"""From a command line to a plan, and from a plan to the environment that carries it out."""

from __future__ import annotations

import json
import os
import sys
from types import MappingProxyType

from cputrain.errors import PlanError, UsageError
from cputrain.launch import backends
from cputrain.launch.settings import read_settings
from cputrain.machine import RootSource, read_machine, read_rank
from cputrain.plan import Request, Setting, backend, make_plan, read_plan
from cputrain.plan.policies import KNOBS
from cputrain.runtime.library_variables import AT_PROCESS_START
from cputrain.runtime.share import planned_rank
from cputrain.runtime.trial import VARIABLE as TRIAL_VARIABLE

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
"""The folder whose sitecustomize the user's interpreter finds first."""

PLAN_VARIABLE = "CPUTRAIN_PLAN"
REPORT_VARIABLE = "CPUTRAIN_REPORT"
"""For the planned process alone: "1" asks for a line at its end."""

PRELOAD_VARIABLE = "CPUTRAIN_LD_PRELOAD"
"""For the planned process alone: what LD_PRELOAD was, and is to be once that process runs."""


def plan_for(
    parsed: Parsed,
    machine: Machine | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    tuned: Mapping[str, Setting] = MappingProxyType({}),
    here: bool = True,
) -> Plan:
    """The plan that `--plan` names, else a new one for the machine, command line and script.

    Unless the machine is the one `here`, nothing is known of its backends.
    """
    path = parsed.values.get("--plan")
    machine = machine or read_machine(RootSource(), detail=False)
    if path is not None:
        for knob in KNOBS.values():
            if parsed.has(knob.flag):
                raise UsageError(
                    knob.flag,
                    "cannot be given with --plan",
                    do="The plan has decided on it already.",
                )
        return _saved(path, machine)
    request = request_for(parsed, environment, tuned)
    if here:
        asked = request.settings.get(backend.KNOB.name)
        found = backends.backend_candidates(machine, asked, unsafe=parsed.has(backend.UNSAFE))
        request = request.replace(backends=found)
    return make_plan(machine, request)


def plan_for_script(parsed: Parsed, script: str, machine: Machine) -> tuple[Plan, str]:
    """With what was tuned for the script, if it can be carried out; and why it is not, if not."""
    if parsed.has("--plan") or TRIAL_VARIABLE in os.environ:
        return plan_for(parsed, machine), ""
    tuned, why_not = _tuned_settings(script, machine)
    try:
        return plan_for(parsed, machine, tuned=tuned), why_not
    except UsageError as error:
        plan = plan_for(parsed, machine)  # which raises where the fault is the user's
        return plan, f"what was tuned is not used: {error}"


def _tuned_settings(script: str, machine: Machine) -> tuple[dict[str, Setting], str]:
    """What `cputrain tune` found for a script; and why it is not used, if it is not."""
    from cputrain.tune.store import load

    tuned, why_not = load(script, machine.fingerprint(), machine.budget.cpus)
    if tuned is None:
        return {}, why_not
    where = f"cputrain tune on {tuned.when}"
    return {
        name: Setting(value=value, where=where, measured=f"{where}: {tuned.reason}")
        for name, value in tuned.settings.items()
        if name in KNOBS and (value in KNOBS[name].choices or not KNOBS[name].choices)
    }, ""


def request_for(
    parsed: Parsed,
    environment: Mapping[str, str],
    tuned: Mapping[str, Setting] = MappingProxyType({}),
) -> Request:
    """What the user asked for, in an environment without what an outer launch has set."""
    environment = users_environment(environment)
    # an outer launch of the same rank has narrowed the mask to its share already
    divided = _outer(environment).get("rank", "") == planned_rank(environment)
    return Request(
        settings={**tuned, **_outer_settings(os.environ), **read_settings(parsed, os.environ)},
        environment=environment,
        rank=None if divided else read_rank(environment),
        python=sys.version_info[:2],
    )


def users_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less the variables that an outer launch put there, if they still stand."""
    ours = _outer(environment).get("environment")
    if not isinstance(ours, dict):
        return dict(environment)
    return {name: value for name, value in environment.items() if ours.get(name) != value}


def _outer_settings(environment: Mapping[str, str]) -> dict[str, Setting]:
    """What the user told an outer launch; a mask it set has narrowed the budget already."""
    told = _outer(environment).get("settings")
    return {
        name: Setting(value=value, where=f"{knob.flag} of the outer launch")
        for name, value in (told.items() if isinstance(told, dict) else ())
        if isinstance(value, str) and (knob := KNOBS.get(name)) and name != "placement"
    }


def _outer(environment: Mapping[str, str]) -> dict[str, Any]:
    """The plan of an outer launch, as far as it can be read."""
    try:
        found = json.loads(environment.get(PLAN_VARIABLE, ""))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def environment_for(
    plan: Plan, *, quiet: bool, replayed: bool, is_python: bool = True
) -> dict[str, str]:
    """Return every variable that the program is started with.

    Python takes all of them away again but for PYTHONPATH and CPUTRAIN_PLAN, which are for the
    programs that it starts. A command that is no Python script keeps LD_PRELOAD for those.
    """
    before = os.environ.get("PYTHONPATH", "")  # in it, an empty entry is the working folder
    paths = [path for path in before.split(os.pathsep) if path != SITE_FOLDER] if before else []
    rank = "" if replayed else planned_rank(os.environ)
    environment = users_environment(os.environ)
    at_start = {name: value for name, value in plan.environment.items() if name in AT_PROCESS_START}
    if at_start and is_python:
        at_start[PRELOAD_VARIABLE] = environment.get("LD_PRELOAD", "")
    return {
        **at_start,
        "PYTHONPATH": os.pathsep.join([SITE_FOLDER, *paths]),
        PLAN_VARIABLE: plan.carried(rank=rank, environment=environment),
        REPORT_VARIABLE: "0" if quiet else "1",
    }


def check_preload(plan: Plan) -> None:
    """An error where the allocator is a file that cannot be preloaded; ld.so would only mutter."""
    if "LD_PRELOAD" not in plan.environment:
        return
    path = plan.value("allocator")
    if not os.path.isfile(path) or any(letter in path for letter in ": \t"):
        raise UsageError(
            "--allocator",
            "must be the path of a library, without spaces and colons",
            found=repr(path) if os.path.isfile(path) else f"no file {path!r}",
            do="Leave it out, or name the library that is installed.",
        )


def _saved(path: str, machine: Machine) -> Plan:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"--plan {path}",
            "must be a readable file",
            found=getattr(error, "strerror", None) or str(error),
            do="Make one with: cputrain plan --json SCRIPT > plan.json",
        ) from None
    plan = read_plan(text, f"--plan {path}")
    if plan.machine != machine.fingerprint():
        raise PlanError(
            f"--plan {path}",
            f"must be made on this machine ({machine.fingerprint()})",
            found=plan.machine,
            do="Make one here with: cputrain plan --json SCRIPT > plan.json",
        )
    missing = set(plan.value("placement") or ()) - set(machine.budget.cpus)
    if missing:
        raise PlanError(
            f"--plan {path}",
            "must place the script on CPUs it may use now",
            found=f"CPU {min(missing)}, which this process may not use",
            do="Make a new one under the same limits.",
        )
    return plan
