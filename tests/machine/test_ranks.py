"""Who started this process, as one of how many."""

from __future__ import annotations

import pytest

from cputrain.machine.ranks import Rank, read_rank, threads_set_by_launcher

BY_LAUNCHER = [
    ("torchrun", {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, False),
    ("Open MPI", {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
    ("Intel MPI", {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}, True),
    ("MVAPICH", {"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "4"}, True),
    ("Slurm", {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4"}, False),
]


@pytest.mark.parametrize(("launcher", "environment", "binds"), BY_LAUNCHER)
def test_each_launcher_is_known_by_its_variables(
    launcher: str, environment: dict[str, str], binds: bool
) -> None:
    """And whether it may have bound its ranks."""
    assert read_rank(environment) == Rank(launcher=launcher, index=1, count=4, binds=binds)


def test_slurm_says_whether_it_binds() -> None:
    """The type of binding, and several nodes in one word."""
    environment = {
        "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    }
    assert read_rank(environment) == Rank(launcher="Slurm", index=0, count=2, binds=True)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LOCAL_RANK": "0"},
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"},
        {"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "4"},
        {"LOCAL_RANK": "²", "LOCAL_WORLD_SIZE": "4"},
        {"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""},
    ],
)
def test_one_process_or_nonsense_is_no_rank(environment: dict[str, str]) -> None:
    """It then has the machine to itself."""
    assert read_rank(environment) is None


def test_one_thread_is_a_launchers_caution_only_where_a_launcher_is() -> None:
    """Otherwise it is what the user asked for."""
    assert threads_set_by_launcher({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"})
    assert threads_set_by_launcher({"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"})
    assert not threads_set_by_launcher({"OMP_NUM_THREADS": "1"})
    assert not threads_set_by_launcher({"OMP_NUM_THREADS": "4", "TORCHELASTIC_RUN_ID": "x"})
