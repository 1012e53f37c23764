"""Setting `short_waits`: how long idle compute threads spin before they sleep.

After each operator libgomp's threads spin for milliseconds, waiting for the next one. Alone on a
machine that is right: waking takes longer. Beside loader workers it takes the cores they work on,
and a step waits for its data. Measured on 16 cores with short waits and without, against python:
a small network with two workers 1.67 and 0.96 times as fast, a convolutional one with eight 1.86
and 1.23, one whose workers idle 1.93 and 1.91; docs/benchmarks has the rest.
"""

from __future__ import annotations

import os

from cputrain.settings.core.decision import Decision, Origin
from cputrain.settings.core.setting import THREADS, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request
    from cputrain.settings.core.setting import Applied

SPINS = "1000"
"""Some 50 microseconds: longer than the gap between two operators, far shorter than a batch."""

KEPT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


class ShortWaitsSetting(Switch):
    """Whether idle compute threads sleep sooner: always if set, else beside loader workers."""

    name = "short_waits"
    order = 100
    group = THREADS
    is_advanced = True
    help = "let idle compute threads sleep sooner (auto: beside loader workers)"
    variables = frozenset({"GOMP_SPINCOUNT"})
    application_order = 55  # within loader_cores, which reduces the threads that it counts

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return shorter spin-waits beside loader workers; always or never if the user set so."""
        user = request.setting(self.name)
        kept = [name for name in KEPT if name in request.environment]
        if user is None and kept:
            return self._off(f"{kept[0]} was already set, and is kept", Origin.USER)
        if user is not None and user.value == "off":
            return self._off(user.reason, Origin.USER)
        if machine.libc is None:
            return self._off(
                "only libgomp, which comes with torch on glibc systems, is known to spin so"
            )
        return self.decision(
            True,
            "short waits" if user else "short waits beside loader workers",
            "" if user else "spinning threads would take the cores that loader workers work on",
            user=user,
            environment={"GOMP_SPINCOUNT": SPINS} if user else {},
            rejected={
                "always": "without workers waking takes longer than the spinning saves: up to 5 % "
                f"was lost; {self.flag} on does it all the same"
            },
        )

    def _off(self, reason: str, origin: Origin = Origin.RULE) -> Decision[bool]:
        return self.decision(
            False, "waits as OpenMP makes them", reason, origin=origin, rejected={"short": reason}
        )

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Watch for loader workers, where the system reports the CPUs of a process."""
        from cputrain.runtime.spin_wait import SpinWait

        return SpinWait(torch) if value and hasattr(os, "sched_getaffinity") else None

    def missing_part(self, decision: Decision[bool]) -> str:
        """Return that waits are short beside workers only, if libgomp is loaded already."""
        from cputrain.runtime.initial_env import started_with

        if not decision.environment or started_with(decision.environment):
            return ""
        return "beside loader workers only: libgomp reads GOMP_SPINCOUNT when it is loaded"


SETTING = ShortWaitsSetting()
