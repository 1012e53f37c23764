"""`cputrain.setup`: a plan for the process that calls it, as far as it can still be carried out."""

from __future__ import annotations

import os
import sys

from cputrain.errors import CputrainError
from cputrain.launch import planning
from cputrain.launch.options import Parsed
from cputrain.machine import RootSource, read_machine
from cputrain.notebook import initial_env as began
from cputrain.notebook import placement
from cputrain.notebook.apply import apply_settings
from cputrain.notebook.kwargs import in_one_message, in_python, settings_of
from cputrain.notebook.outcome import Effect, Setup, Step
from cputrain.plan import Setting, make_plan
from cputrain.plan.backend import decided
from cputrain.runtime.openmp import Runtimes
from cputrain.runtime.state import NOW
from cputrain.runtime.trial import VARIABLE as TRIAL_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.found import Found

NOTHING_SAID = Parsed(values={}, rest=())

ON_TRIAL = "cputrain tune is measuring this process, and plans it"


class _Session:
    """What is remembered from one setup to the next."""

    machine: Machine | None = None
    """As it was before a mask of ours."""

    tuned: dict[str, Setting] | None = None
    """What was found by measuring."""


def setup(**settings: object) -> Setup:
    """Make training in this process faster, as far as that can be done once it runs.

    Settings are those of `cputrain launch`, with underscores: `setup(threads=4, compile="on")`.
    What is not given comes from CPUTRAIN_* variables, from cputrain.toml, from what
    `%%cputrain_tune` found, or from the rules. Called again, it puts the new plan in the place of
    the old one. The value that it returns says of every decision what happened to it.
    """
    try:
        return set_up(NOTHING_SAID, settings_of(settings))
    except CputrainError as error:
        raise in_one_message(error) from None


def set_up(parsed: Parsed, given: Mapping[str, Setting]) -> Setup:
    """The same for what a magic's line says, or a program."""
    plan = plan_here(parsed, given)
    waiting = TRIAL_VARIABLE in os.environ  # taken out once torch is there
    import torch

    if waiting or NOW.on_trial:
        steps = tuple(
            Step(policy=one.policy, says=one.says, effect=Effect.NOTHING, why=ON_TRIAL)
            for one in plan.decisions
        )
        return Setup(plan=plan, steps=steps, launched=NOW.launched)
    steps = apply_settings(torch, plan)
    _show_values()
    runtimes = Runtimes().describe().removeprefix("warning: ")
    return Setup(
        plan=plan,
        steps=steps,
        launched=NOW.launched,
        restart=_restart(plan, steps),
        warnings=(*map(in_python, plan.warnings), *([runtimes] if runtimes else [])),
    )


def _show_values() -> None:
    """Plans and the like as tables, where IPython shows them."""
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is not None:
            from cputrain.notebook.extension import show_values

            show_values(shell)


def plan_here(parsed: Parsed, given: Mapping[str, Setting]) -> Plan:
    """The plan for this process; nothing is changed."""
    request = planning.request_for(parsed, began.environment_here(), _Session.tuned or {})
    request = request.replace(
        settings={**request.settings, **given}, backends=decided(NOW.values.get("backend"))
    )
    plan = make_plan(machine_here(), request)
    planning.check_preload(plan)
    return plan


def machine_here() -> Machine:
    """The machine, without a mask of ours."""
    if _Session.machine is None or placement.POLICY not in NOW.applied:
        _Session.machine = read_machine(RootSource(), detail=False)
    return _Session.machine


def remember(found: Found, where: str) -> None:
    """From now on the plan has what was measured, where the user says nothing else."""
    _Session.tuned = {
        name: Setting(value=value, where=where, measured=f"{where}: {found.reason}")
        for name, value in found.settings.items()
    }


def _restart(plan: Plan, steps: tuple[Step, ...]) -> str:
    """What to type to have what came too late."""
    from shlex import join

    late = [step.policy for step in steps if step.late]
    if not late or sys.platform == "win32":
        return ""
    asked = [f"--{name.replace('_', '-')}={plan.settings[name]}" for name in late
             if name in plan.settings]  # fmt: skip
    return join(("cputrain", "launch", *asked, *began.command_of()))
