"""Plan again for a rank's share of the cores, if ranks were started after the plan was made.

`cputrain launch --cmd -- torchrun --nproc-per-node 4 train.py` plans before there are ranks. Each
rank then plans for its share, before torch is loaded and OpenMP reads its number of threads.
"""

from __future__ import annotations

import os
import sys

from cputrain.machine.ranks import planned_rank, read_rank
from cputrain.runtime.plan_env import read_plan_env
from cputrain.variables import PLAN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from cputrain.runtime.plan_env import PlanEnv
    from cputrain.settings.core.decision import UserValue


def take_share(environment: MutableMapping[str, str]) -> None:
    """Make and apply a new plan if this process is a rank that the plan was not made for."""
    rank = read_rank(environment)
    if rank is None:
        return
    plan_env = read_plan_env(environment)
    if plan_env.rank == planned_rank(environment):
        return
    from cputrain.machine import read_machine
    from cputrain.plan import Request, make_plan
    from cputrain.settings import backend, placement

    user_environment = {
        name: value
        for name, value in environment.items()
        if plan_env.environment.get(name) != value
    }
    plan = make_plan(
        read_machine(detail=False),
        Request(
            settings=_inherited_settings(plan_env),
            environment=user_environment,
            rank=rank,
            python=sys.version_info[:2],
            backends=backend.decided(backend.SETTING.read(plan_env.values)),
        ),
    )
    cpus = placement.SETTING.read(plan.values)
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    environment[PLAN] = plan.carried(rank=planned_rank(environment), environment=environment)


def _inherited_settings(plan_env: PlanEnv) -> dict[str, UserValue]:
    """Return the user's settings for the new plan, and values that do not depend on the share."""
    from cputrain.settings.core.decision import UserValue
    from cputrain.settings.core.registry import SETTINGS

    settings = {
        name: UserValue(value=value, where=f"{name} of the plan")
        for name, value in plan_env.settings.items()
        if name in SETTINGS and SETTINGS[name].is_inheritable(value)
    }
    for name, value in plan_env.values.items():
        inherited = SETTINGS[name].inherited(value)
        if inherited:
            settings[name] = UserValue(value=inherited, where="plan")
    return settings
