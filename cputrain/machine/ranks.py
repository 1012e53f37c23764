"""Whether something that starts one process per rank has started this one, and which rank it is."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AGENT_PID = "CPUTRAIN_AGENT"
"""The process of our own agent, which tells its ranks so."""

AGENT_THREADS = "CPUTRAIN_AGENT_THREADS"
"""There where that agent has set OMP_NUM_THREADS, not the user."""

SEAT = "CPUTRAIN_SEAT"
"""A rank's number on its node, where LOCAL_RANK tells another: it sees one GPU only."""

LAUNCHERS = (
    # name, rank on this node, ranks on this node, whether it is known to bind ranks to CPUs
    ("torchrun", SEAT, "LOCAL_WORLD_SIZE", False),
    ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE", False),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", True),
    ("Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", True),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", True),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", True),
)


class Rank(Record):
    """This process's place among those that share the machine."""

    launcher: str
    """Who started the ranks: "torchrun", "Slurm", …"""

    index: int
    """This rank's number on this machine, from 0."""

    count: int
    """How many ranks this machine has."""

    binds: bool
    """Whether that launcher may already have given each rank CPUs of its own."""


def read_rank(environment: Mapping[str, str]) -> Rank | None:
    """The rank, or None for a process that has the machine to itself."""
    for launcher, index_name, count_name, binds in LAUNCHERS:
        index = environment.get(index_name, "")
        # Slurm writes "2(x3),1" when nodes differ; the first number is this node's often enough
        # for a step, and a wrong one only makes the share smaller or larger, never invalid
        count = environment.get(count_name, "").partition("(")[0].partition(",")[0]
        if not all(value.isdecimal() and len(value) < 7 for value in (index, count)):
            continue
        if int(index) < int(count) and int(count) > 1:
            if launcher == "Slurm":
                binds = environment.get("SLURM_CPU_BIND_TYPE", "none") not in ("", "none")
            return Rank(launcher=launcher, index=int(index), count=int(count), binds=binds)
    return None


def threads_set_by_launcher(environment: Mapping[str, str]) -> bool:
    """Whether OMP_NUM_THREADS=1 is a launcher's caution rather than the user's wish.

    torchrun exports it for every rank of several, and `accelerate launch` even for a single
    process, when nobody set it.
    """
    if AGENT_PID in environment:
        return AGENT_THREADS in environment
    started_by = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU")
    return environment.get("OMP_NUM_THREADS") == "1" and any(
        name in environment for name in started_by
    )
