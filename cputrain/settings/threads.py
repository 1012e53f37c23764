"""Setting `threads`: the number of intra-op threads."""

from __future__ import annotations

import os

from cputrain.counting import counted
from cputrain.machine import threads_set_by_launcher
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.decision import Decision, Origin
from cputrain.settings.core.setting import THREADS, Setting
from cputrain.settings.core.values import count, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request, UserValue
    from cputrain.settings.core.situation import Situation

VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables from which torch takes its threads; the first takes precedence."""


class ThreadsSetting(Setting[int]):
    """Number of threads that one operator uses."""

    name = "threads"
    order = 10
    group = THREADS
    takes = "N|auto"
    help = "threads that one operator uses (auto: the physical cores of the budget)"
    rule = "a number of threads"
    patches_torch = False
    may_drift = True
    trial_order = 30
    is_monotonic = True  # small tensors do not repay synchronizing many threads

    def decide(self, machine: Machine, request: Request) -> Decision[int]:
        """Return the user's number, else the environment variable's, else the cores there are."""
        share = share_of(machine, request)
        user = request.setting(self.name)
        if user is not None:
            number = thread_count(user, machine)
            return self.decision(number, _says(number), user=user)
        for name in VARIABLES:
            text = request.environment.get(name, "").partition(",")[0].strip()
            if not (text.isascii() and text.isdigit() and len(text) < 7) or int(text) < 1:
                continue
            if name == "OMP_NUM_THREADS" and threads_set_by_launcher(request.environment):
                continue
            return self.decision(
                int(text),
                _says(int(text)),
                f"{name}={text} was already set",
                origin=Origin.USER,
                rejected={
                    str(share.cores): f"{name} is set; unset it, or say --threads {share.cores}"
                },
                warning=_warn_of_many(int(text), machine),
            )
        logical = len(share.cpus)
        rejected = {}
        if logical > share.cores:
            rejected[str(logical)] = (
                "one thread for each logical CPU: two threads on one core share its arithmetic "
                f"units and wait for each other; --threads {logical} does it all the same"
            )
        if share.frugal:
            rejected["efficiency"] = (
                f"threads on the {len(share.frugal)} efficiency cores too: operators split their "
                "work evenly, so the fast cores would wait for the slow ones"
            )
        return self.decision(share.cores, _says(share.cores), share.reason, rejected=rejected)

    def load(self, document: Any) -> int:
        """Return the number that a saved plan holds."""
        return count(document)

    def candidates(self, situation: Situation) -> list[str]:
        """Return half the planned number of threads, a quarter, …, 1."""
        planned = situation.values[self.name]
        return [str(planned >> halvings) for halvings in range(1, planned.bit_length())]

    def apply(self, torch: ModuleType, value: int) -> Threads:
        """Set the number of threads, unless this process has another limit."""
        previous = torch.get_num_threads()
        if value != previous and _may_set(value, previous):
            torch.set_num_threads(value)
        return Threads(torch, previous)

    def is_in_effect(self, torch: ModuleType, decision: Decision[int]) -> bool:
        """Return whether torch has this number of threads."""
        return bool(torch.get_num_threads() == decision.value)

    def observe(self, torch: ModuleType, decision: Decision[int]) -> Threads:
        """Report the number of threads, whoever has set it."""
        return Threads(torch, decision.value)

    def apply_now(self, torch: ModuleType, decision: Decision[int]) -> Threads:
        """Set the number of threads."""
        previous = torch.get_num_threads()
        torch.set_num_threads(decision.value)
        return Threads(torch, previous)


class Threads:
    """The number of intra-op threads that was set, and the one before."""

    def __init__(self, torch: ModuleType, previous: int) -> None:
        self._torch = torch
        self._previous = previous
        self._count = torch.get_num_threads()

    def describe(self) -> str:
        return _says(self._torch.get_num_threads())

    def undo(self) -> None:
        if self._torch.get_num_threads() == self._count:  # otherwise the script has set it since
            self._torch.set_num_threads(self._previous)


def thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which torch takes its number of threads, as far as they are set."""
    return {name: environment[name] for name in VARIABLES if name in environment}


def thread_count(user: UserValue, machine: Machine) -> int:
    """Parse a number of threads. Raises UsageError if there are not that many logical CPUs."""
    most = len(machine.budget.cpus)
    return parse_count(
        user,
        f"must be auto or a whole number from 1 to {most}, the logical CPUs this process may use"
        if most > 1
        else "must be auto or 1, as this process may use one logical CPU",
        most=most,
        advice="Leave it out to get one for each physical core.",
    )


def _says(number: int) -> str:
    return counted(number, "thread")


def _warn_of_many(number: int, machine: Machine) -> str:
    if number <= len(machine.budget.cpus):
        return ""
    return (
        f"{number} threads are set for {counted(len(machine.budget.cpus), 'usable CPU')}, so they "
        "take turns; "
        f"unset the variable, or say --threads {machine.budget.physical_cores}"
    )


def _may_set(value: int, previous: int) -> bool:
    """Return whether the plan's number of threads applies to this process.

    A child process with thread variables of its own keeps them: joblib limits its workers this way.
    One with a narrower CPU mask has fewer threads by default, and gets no more.
    """
    from cputrain.runtime.state import NOW

    if threads_set_by_launcher(os.environ):
        return True
    if thread_variables(os.environ) != NOW.thread_variables:
        return False
    return value < previous or NOW.is_planned


SETTING = ThreadsSetting()
