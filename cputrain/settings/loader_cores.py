"""Setting `loader_cores`: cores reserved for the workers of DataLoaders."""

from __future__ import annotations

import os

from cputrain.counting import counted
from cputrain.machine import format_list
from cputrain.record import Record
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.setting import DATA, Setting
from cputrain.settings.core.values import count, fields, numbers, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Cpus, Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied


class WorkerCores(Record):
    """Cores of loader workers."""

    cpus: Cpus | None
    """CPUs reserved for them; None if they share all cores with compute."""

    threads: int = 1
    """Intra-op threads of each worker."""

    compute_threads: int | None = None
    """Intra-op threads of the script while workers run; None leaves them as they are."""


class LoaderCoresSetting(Setting[WorkerCores]):
    """Number of cores that are reserved for loader workers."""

    name = "loader_cores"
    order = 60
    group = DATA
    is_advanced = True
    takes = "N|auto|shared"
    help = "cores kept for loader workers (auto: none, they share the cores with compute)"
    rule = '{"cpus": [CPUs] or null, "threads": N, "compute_threads": N or null}'

    def decide(self, machine: Machine, request: Request) -> Decision[WorkerCores]:
        """Return shared cores, unless the user reserved a number of them.

        Reserving 8 of 64 cores made a script with 8 busy workers 1.5 times as fast, and one with 2
        idle workers a tenth slower: no rule can decide it without a measurement.
        """
        share = share_of(machine, request)
        user = request.setting(self.name)
        if user is not None and user.value != "shared":
            cores = len(share.fast)
            reserved = parse_count(
                user,
                "must be auto, shared or a whole number that leaves at least one of the "
                f"{counted(cores, 'core')} to compute",
                most=cores - 1,
                advice="Leave it out to share the cores.",
            )
            cpus = tuple(sorted(cpu for core in share.fast[-reserved:] for cpu in core))
            return self.decision(
                WorkerCores(cpus=cpus, compute_threads=max(1, share.cores - reserved)),
                f"loader workers on CPUs {format_list(cpus)}, one thread each",
                user=user,
                rejected={"shared": f"{user.reason}; {self.flag} shared lets them run anywhere"},
            )
        decision = self.decision(
            WorkerCores(cpus=None),
            "loader workers share the cores, one thread each",
            ""
            if user
            else "the efficiency cores are left to them by compute, and the scheduler puts them "
            "there"
            if share.frugal
            else "the scheduler lends their cores to compute while they sleep; which share is best "
            "depends on the script",
            user=user,
        )
        return decision.replace(
            rejected={"reserved": f"{decision.reason}; {self.flag} N keeps N cores for them"}
        )

    def load(self, document: Any) -> WorkerCores:
        """Return the cores that a saved plan holds."""
        cpus, threads, compute_threads = fields(document, *WorkerCores.record_fields)
        return WorkerCores(
            cpus=None if cpus is None else numbers(cpus),
            threads=count(threads),
            compute_threads=None if compute_threads is None else count(compute_threads),
        )

    def has_effect(self, decision: Decision[WorkerCores]) -> bool:
        """Return whether cores are reserved."""
        return bool(decision.value.cpus)

    def apply(self, torch: ModuleType, value: WorkerCores) -> Applied | None:
        """Pin workers if cores are reserved; torch itself gives each worker one thread."""
        if not value.cpus or value.compute_threads is None or not hasattr(os, "sched_setaffinity"):
            return None
        from cputrain.runtime.placed_workers import PlacedWorkers

        return PlacedWorkers(torch, value.cpus, value.compute_threads)


SETTING = LoaderCoresSetting()
