"""Candidates for `replicas`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "replicas"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return one replica for each L3 cache or NUMA node, and for every few cores."""
    from cputrain.plan import Request
    from cputrain.plan.cores import share_of
    from cputrain.plan.teams import counts, ordered

    machine = situation.machine
    cores = ordered(machine, share_of(machine, Request()).fast)
    return list(map(str, counts(machine, cores[: situation.plan.value("threads")])))
