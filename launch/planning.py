"""From a command line to a plan, and from a plan to the environment that carries it out."""

from __future__ import annotations

import json
import os
import sys

from cputrain.errors import PlanError
from cputrain.launch.settings import read_settings
from cputrain.machine import RootSource, read_machine, read_rank
from cputrain.plan import Request, make_plan, read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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


def plan_for(
    parsed: Parsed,
    machine: Machine | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
) -> Plan:
    """The plan that `--plan` names, else a new one for the machine and command line."""
    path = parsed.values.get("--plan")
    machine = machine or read_machine(RootSource(), detail=False)
    if path is not None:
        return _saved(path, machine)
    return make_plan(machine, request_for(parsed, environment))


def request_for(parsed: Parsed, environment: Mapping[str, str]) -> Request:
    """What the user asked for, in an environment without what an outer launch has set."""
    environment = users_environment(environment)
    return Request(
        settings=read_settings(parsed, os.environ),
        environment=environment,
        rank=read_rank(environment),
        python=sys.version_info[:2],
    )


def users_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less the variables that an outer launch put there, if they still stand."""
    outer = environment.get(PLAN_VARIABLE, "")
    if not outer.startswith("{"):
        return dict(environment)
    try:
        ours = json.loads(outer).get("environment", {})
    except ValueError:
        return dict(environment)
    return {name: value for name, value in environment.items() if ours.get(name) != value}


def environment_for(plan: Plan, *, quiet: bool) -> dict[str, str]:
    """Every variable that the program is started with."""
    paths = [
        path
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and path != SITE_FOLDER
    ]
    return {
        **plan.environment,
        "PYTHONPATH": os.pathsep.join([SITE_FOLDER, *paths]),
        PLAN_VARIABLE: plan.carried(),
        **({} if quiet else {REPORT_VARIABLE: "1"}),
    }


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
