"""Hardware facts and this process's resource limits, each with its source.

The package imports no torch, contains no policy, and reads system files only through `source`.
"""

from cputrain.machine.budget import Budget, cores_within
from cputrain.machine.cpulist import format_list, parse_list
from cputrain.machine.facts import Machine, read_machine
from cputrain.machine.kinds import CoreKind
from cputrain.machine.ranks import Rank, read_rank, threads_set_by_launcher
from cputrain.machine.source import RootSource
from cputrain.machine.topology import Cpus

__all__ = [
    "Budget",
    "CoreKind",
    "Cpus",
    "Machine",
    "Rank",
    "RootSource",
    "cores_within",
    "format_list",
    "parse_list",
    "read_machine",
    "read_rank",
    "threads_set_by_launcher",
]
