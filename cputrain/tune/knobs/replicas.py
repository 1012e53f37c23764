"""Replicas of the model, each with a part of every batch on cores of its own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "replicas"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """As many as there are caches or memory nodes, and teams of a few cores each."""
    from cputrain.plan import Request
    from cputrain.plan.cores import share_of
    from cputrain.plan.teams import counts, ordered

    machine = situation.machine
    cores = ordered(machine, share_of(machine, Request()).fast)
    return list(map(str, counts(machine, cores[: situation.plan.value("threads")])))
