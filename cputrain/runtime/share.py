"""Plan again for a rank's share of the cores, if ranks were started after the plan was made.

`cputrain launch --cmd -- torchrun --nproc-per-node 4 train.py` plans before there are ranks. Each
rank then plans for its share, before torch is loaded and OpenMP reads its number of threads.
"""

from __future__ import annotations

import os
import sys

from cputrain.machine.ranks import read_rank
from cputrain.runtime.plan_env import VARIABLE, read_plan_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from cputrain.plan import Setting


def take_share(environment: MutableMapping[str, str]) -> None:
    """Make and apply a new plan if this process is a rank that the plan was not made for."""
    rank = read_rank(environment)
    if rank is None:
        return
    plan_env = read_plan_env(environment)
    if plan_env.rank == planned_rank(environment):
        return
    from cputrain.machine import read_machine
    from cputrain.plan import Request, Setting, make_plan
    from cputrain.plan.backend import decided

    user_environment = {
        name: value
        for name, value in environment.items()
        if plan_env.environment.get(name) != value
    }
    settings = {
        **_remaining_settings(plan_env.settings),
        # decisions that do not depend on the share stay as they are
        "flush_denormals": Setting(value=_switch(plan_env.values, "flush_denormals"), where="plan"),
        "fused_optimizer": Setting(value=_switch(plan_env.values, "fused_optimizer"), where="plan"),
        "allocator": Setting(value=_allocator(plan_env.values), where="plan"),
    }
    plan = make_plan(
        read_machine(detail=False),
        Request(
            settings=settings,
            environment=user_environment,
            rank=rank,
            python=sys.version_info[:2],
            backends=decided(plan_env.values.get("backend")),
        ),
    )
    cpus = plan.value("placement")
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    environment[VARIABLE] = plan.carried(rank=planned_rank(environment), environment=environment)


def _remaining_settings(settings: Mapping[str, str]) -> dict[str, Setting]:
    """Return the user's settings for the new plan; a CPU mask has narrowed the budget already."""
    from cputrain.plan import Setting

    return {
        name: Setting(value=value, where=f"{name} of the plan")
        for name, value in settings.items()
        if name != "placement" or value == "none"
    }


def planned_rank(environment: Mapping[str, str]) -> str:
    """Return this process's rank as a plan for it names it; empty without ranks."""
    rank = read_rank(environment)
    return "" if rank is None else f"{rank.index}/{rank.count}"


def _allocator(values: dict[str, object]) -> str:
    """Return "tuned" if memory is kept; a library can be preloaded only at process start."""
    return "tuned" if isinstance(values.get("allocator"), dict) else "default"


def _switch(values: dict[str, object], name: str) -> str:
    return "on" if values.get(name) else "off"
