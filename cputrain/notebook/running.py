"""`cputrain.setup`: plan the calling process, and apply what still can be applied to it."""

from __future__ import annotations

import os
import sys

from cputrain import variables
from cputrain.errors import CputrainError
from cputrain.launch import planning
from cputrain.launch.options import Parsed
from cputrain.machine import RootSource, read_machine
from cputrain.notebook import restart
from cputrain.notebook.apply import apply_settings
from cputrain.notebook.kwargs import (
    error_with_kwargs,
    flags_to_kwargs,
    settings_from_kwargs,
)
from cputrain.notebook.outcome import Effect, SetupResult, SetupStep
from cputrain.plan import UserValue, make_plan
from cputrain.runtime.dynamo_watch import defer_in_this_process
from cputrain.runtime.initial_env import effective_environ
from cputrain.runtime.openmp import Runtimes
from cputrain.runtime.state import NOW
from cputrain.settings import backend, placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from cputrain.machine import Machine
    from cputrain.notebook.typed_settings import Settings
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult

NO_OPTIONS = Parsed(values={}, rest=())

ON_TRIAL = "cputrain tune measures this process and has chosen its plan"


class _Session:
    """State that lasts from one setup to the next."""

    machine: Machine | None = None
    """The machine as it was before a setup changed this process's CPU mask."""

    tuned: dict[str, UserValue] | None = None
    """Settings of the winner of the latest search in this process."""


def setup(**settings: Unpack[Settings]) -> SetupResult:
    """Make training in this process faster, as far as that is possible once it runs.

    Settings that are not given come from CPUTRAIN_* variables, cputrain.toml, the latest search of
    `%%cputrain_tune`, or the rules. Called again, it replaces the former plan by the new one.

    Args:
        **settings: Settings of `cputrain launch`, with underscores:
            `setup(threads=4, compile="on")`.

    Returns:
        The plan, and for each of its decisions what happened to it.

    Raises:
        UsageError: A setting is unknown, or its value breaks a rule; nothing is changed then.

    Examples:
        >>> import cputrain
        >>> result = cputrain.setup(threads=1)
        >>> result.plan.value("threads")
        1
    """
    try:
        return setup_from_options(NO_OPTIONS, settings_from_kwargs(settings))
    except CputrainError as error:
        raise error_with_kwargs(error) from None


def setup_from_options(parsed: Parsed, settings: Mapping[str, UserValue]) -> SetupResult:
    """Plan this process and apply the plan.

    Args:
        parsed: Options of a magic's line.
        settings: Further settings by name, which go before those of `parsed`.
    """
    plan = plan_for_process(parsed, settings)
    is_on_trial = variables.TRIAL in os.environ  # importing torch starts the recorder, removes it
    import torch

    if is_on_trial or NOW.on_trial:
        steps = tuple(
            SetupStep(
                policy=decision.policy, says=decision.says, effect=Effect.NOTHING, why=ON_TRIAL
            )
            for decision in plan.decisions
        )
        return SetupResult(plan=plan, steps=steps, launched=NOW.launched)
    defer_in_this_process(torch)
    steps = apply_settings(torch, plan)
    _register_formatters()
    runtimes = Runtimes().describe().removeprefix("warning: ")
    return SetupResult(
        plan=plan,
        steps=steps,
        launched=NOW.launched,
        restart=_restart_command(plan, steps),
        warnings=(*map(flags_to_kwargs, plan.warnings), *([runtimes] if runtimes else [])),
    )


def _register_formatters() -> None:
    """Have IPython, if this process runs it, display plans and other values as tables."""
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is not None:
            from cputrain.notebook.extension import register_formatters

            register_formatters(shell)


def plan_for_process(parsed: Parsed, settings: Mapping[str, UserValue]) -> Plan:
    """Return the plan for this process, without applying it."""
    request = planning.request_for(parsed, effective_environ(), _Session.tuned or {})
    request = request.replace(
        settings={**request.settings, **settings},
        backends=backend.decided(backend.SETTING.read(NOW.values)),
    )
    plan = make_plan(machine_before_setup(), request)
    planning.check_preload(plan)
    return plan


def machine_before_setup() -> Machine:
    """Return the machine as it was before a setup changed the CPU mask of this process."""
    if _Session.machine is None or placement.SETTING.name not in NOW.applied:
        _Session.machine = read_machine(RootSource(), detail=False)
    return _Session.machine


def remember_winner(result: SearchResult, where: str) -> None:
    """Use the winner's settings in later setups, where the user sets nothing else.

    Args:
        result: Result of the search.
        where: Name of the command that searched, for the reasons of decisions.
    """
    _Session.tuned = {
        name: UserValue(value=value, where=where, measured=f"{where}: {result.reason}")
        for name, value in result.settings.items()
    }


def _restart_command(plan: Plan, steps: tuple[SetupStep, ...]) -> str:
    """Return the launch command under which nothing comes too late; empty if nothing did."""
    from shlex import join

    late = [step.policy for step in steps if step.late]
    if not late or sys.platform == "win32":
        return ""
    flags = [f"--{name.replace('_', '-')}={plan.settings[name]}" for name in late
             if name in plan.settings]  # fmt: skip
    return join(("cputrain", "launch", *flags, *restart.launch_target()))
