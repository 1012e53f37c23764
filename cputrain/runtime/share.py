"""A rank's share of the cores, when the ranks were started after the plan was made.

`cputrain launch --cmd -- torchrun --nproc-per-node 4 train.py` plans before there are ranks. Each
rank then plans again for its part, before torch is loaded and OpenMP counts its threads.
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
    """Plan again where this process is a rank that the plan does not know of."""
    rank = read_rank(environment)
    if rank is None:
        return
    carried = read_plan_env(environment)
    if carried.rank == planned_rank(environment):
        return
    from cputrain.machine import read_machine
    from cputrain.plan import Request, Setting, make_plan
    from cputrain.plan.backend import decided

    kept = {
        name: value for name, value in environment.items() if carried.environment.get(name) != value
    }
    settings = {
        **_still_to_be_met(carried.settings),
        # what was decided for the whole machine and does not depend on the share stays decided
        "flush_denormals": Setting(value=_switch(carried.values, "flush_denormals"), where="plan"),
        "fused_optimizer": Setting(value=_switch(carried.values, "fused_optimizer"), where="plan"),
        "allocator": Setting(value=_allocator(carried.values), where="plan"),
    }
    plan = make_plan(
        read_machine(detail=False),
        Request(
            settings=settings,
            environment=kept,
            rank=rank,
            python=sys.version_info[:2],
            backends=decided(carried.values.get("backend")),
        ),
    )
    cpus = plan.value("placement")
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    environment[VARIABLE] = plan.carried(rank=planned_rank(environment), environment=environment)


def _still_to_be_met(settings: Mapping[str, str]) -> dict[str, Setting]:
    """The user's words that hold for each rank anew; a mask has narrowed the budget already."""
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
    """Return "tuned" where memory is kept; a library is preloaded at the start, or not at all."""
    return "tuned" if isinstance(values.get("allocator"), dict) else "default"


def _switch(values: dict[str, object], name: str) -> str:
    return "on" if values.get(name) else "off"
