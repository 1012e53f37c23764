"""Setting `placement`: the CPU mask of the process; threads are never pinned one by one.

OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY pin the thread that imports torch to one core,
and every loader worker forked from it stays there (pytorch#49971, #101850, #149422). A mask that is
set before the interpreter starts has no such fault.
"""

from __future__ import annotations

import os

from cputrain.machine import format_list
from cputrain.settings.core.cores import asked_cpus, share_of
from cputrain.settings.core.setting import THREADS, RefusedError, Setting, TooLateError
from cputrain.settings.core.values import numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Cpus, Machine
    from cputrain.settings.core.decision import Decision, Request, UserValue


class PlacementSetting(Setting["Cpus | None"]):
    """CPUs of the process; None leaves its CPU mask as it is."""

    name = "placement"
    order = 30
    group = THREADS
    takes = "auto|none|cores|CPUS"
    help = "CPUs to run on (cores: one for each fast core; or a list such as 0-7,16)"
    rule = "a list of CPUs, or null"
    plain = "none"
    patches_torch = False

    def decide(self, machine: Machine, request: Request) -> Decision[Cpus | None]:
        """Return a CPU mask if ranks share the machine or the user set one, else no mask."""
        share = share_of(machine, request)
        user = request.setting(self.name)
        one_each = tuple(core[0] for core in share.fast)
        if machine.limits.affinity is None and machine.system != "linux":
            why = "this platform has no affinity masks"
            is_mask_wanted = user is not None and user.value != "none"
            warning = f"{user.where} has no effect: {why}; leave it out" if user else ""
            return self._no_mask(why, warning=warning if is_mask_wanted else "")
        if user is not None and user.value == "none":
            return self._no_mask(user=user)
        if user is not None and user.value == "cores":
            return self._mask(one_each, f"{user.where}: one CPU for each fast core", user)
        cpus = asked_cpus(machine, request)
        if user is not None and cpus is not None:
            return self._mask(cpus, "", user)
        if share.divided:
            return self._mask(share.cpus, share.reason)
        return self._no_mask(
            "the process has its budget to itself, and the scheduler moves a thread off a busy "
            "core where a narrower mask would make it wait",
            rejected={
                "cores": "not measured to be faster here; --placement cores gives "
                + format_list(one_each)
            },
        )

    def _mask(
        self, cpus: Cpus, reason: str, user: UserValue | None = None
    ) -> Decision[Cpus | None]:
        return self.decision(cpus, f"CPUs {format_list(cpus)}", reason, user=user)

    def _no_mask(
        self,
        reason: str = "",
        *,
        user: UserValue | None = None,
        rejected: Mapping[str, str] | None = None,
        warning: str = "",
    ) -> Decision[Cpus | None]:
        return self.decision(
            None, "no narrower mask", reason, user=user, rejected=rejected, warning=warning
        )

    def load(self, document: Any) -> Cpus | None:
        """Return the CPUs that a saved plan holds."""
        return None if document is None else numbers(document)

    def is_inheritable(self, user_value: str) -> bool:
        """Return whether no mask was asked for: one that was set has narrowed the budget."""
        return user_value == "none"

    def apply(self, torch: ModuleType, value: Cpus | None) -> CpuMask | None:
        """Report the CPU mask that the launcher has set, if the plan has one."""
        return CpuMask() if value is not None and hasattr(os, "sched_getaffinity") else None

    def is_in_effect(self, torch: ModuleType, decision: Decision[Cpus | None]) -> bool:
        """Return whether the process has this CPU mask."""
        return os.sched_getaffinity(0) == set(decision.value or ())

    def apply_now(self, torch: ModuleType, decision: Decision[Cpus | None]) -> CpuMask:
        """Set the CPU mask of all threads. Raises RefusedError if the kernel refuses it."""
        return ThreadMasks(decision.value or ())


class CpuMask:
    """The CPU mask that the launcher has set."""

    def describe(self) -> str:
        return f"CPUs {format_list(tuple(sorted(os.sched_getaffinity(0))))}"

    def undo(self) -> None:
        raise TooLateError("the CPU mask was set before this process began")


class ThreadMasks(CpuMask):
    """The CPU mask that was set in a running process, and each thread's mask before."""

    def __init__(self, cpus: Cpus) -> None:
        self._whole = os.sched_getaffinity(0)
        self._before: dict[int, set[int]] = {}
        new = _thread_ids()
        while new:  # a running thread may start others meanwhile
            for thread in new:
                self._place(thread, cpus)
            new = _thread_ids() - self._before.keys()

    def _place(self, thread: int, cpus: Cpus) -> None:
        self._before[thread] = self._whole
        try:
            self._before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # the thread has ended
            return
        except OSError as error:
            self.undo()
            raise RefusedError(
                f"the CPU mask {format_list(cpus)} was refused ({error.strerror})"
            ) from None

    def undo(self) -> None:
        for thread in _thread_ids():
            try:
                os.sched_setaffinity(thread, self._before.get(thread, self._whole))
            except OSError:  # the thread has ended, or the CPUs are offline
                continue


def _thread_ids() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return {0}


SETTING = PlacementSetting()
