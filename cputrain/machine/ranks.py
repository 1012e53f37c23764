"""Rank of this process, from the environment variables of torchrun, MPI and Slurm."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AGENT_PID = "CPUTRAIN_AGENT"
"""Environment variable with the process id of cputrain's agent, set in its ranks."""

AGENT_THREADS = "CPUTRAIN_AGENT_THREADS"
"""Environment variable that is set if the agent, not the user, has set OMP_NUM_THREADS."""

SEAT = "CPUTRAIN_SEAT"
"""Environment variable with the rank on this node, for ranks whose LOCAL_RANK is always 0.

LOCAL_RANK is 0 in ranks that see a single GPU each."""

LAUNCHERS = (
    # launcher, variable of the local rank, variable of the number of local ranks, binds to CPUs
    ("torchrun", SEAT, "LOCAL_WORLD_SIZE", False),
    ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE", False),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", True),
    ("Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", True),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", True),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", True),
)


class Rank(Record):
    """Rank of this process among the ranks on this machine."""

    launcher: str
    """Program that started the ranks: "torchrun", "Slurm", …"""

    index: int
    """Rank on this machine, from 0."""

    count: int
    """Number of ranks on this machine."""

    binds: bool
    """Whether the launcher may have bound each rank to separate CPUs."""


def read_rank(environment: Mapping[str, str]) -> Rank | None:
    """Return this process's rank; None for a process that is alone on the machine."""
    for launcher, index_name, count_name, binds in LAUNCHERS:
        index = environment.get(index_name, "")
        # Slurm writes "2(x3),1" if nodes differ. The first number is usually this node's; a wrong
        # one makes the rank's CPUs too few or too many, but never invalid.
        count = environment.get(count_name, "").partition("(")[0].partition(",")[0]
        if not all(value.isdecimal() and len(value) < 7 for value in (index, count)):
            continue
        if int(index) < int(count) and int(count) > 1:
            if launcher == "Slurm":
                binds = environment.get("SLURM_CPU_BIND_TYPE", "none") not in ("", "none")
            return Rank(launcher=launcher, index=int(index), count=int(count), binds=binds)
    return None


def threads_set_by_launcher(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher, not the user, has set OMP_NUM_THREADS=1.

    Unless the user sets the variable, torchrun exports it for each of several ranks, and
    `accelerate launch` even for a single process.
    """
    if AGENT_PID in environment:
        return AGENT_THREADS in environment
    launcher_variables = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU")
    return environment.get("OMP_NUM_THREADS") == "1" and any(
        name in environment for name in launcher_variables
    )


def planned_rank(environment: Mapping[str, str]) -> str:
    """Return this process's rank as a plan for it names it; empty without ranks."""
    rank = read_rank(environment)
    return "" if rank is None else f"{rank.index}/{rank.count}"
