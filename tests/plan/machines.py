"""Machines that never were: built from records, as odd as the kernel would let them be."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cputrain.machine import CoreKind, Machine
from cputrain.machine.budget import make_budget
from cputrain.machine.kinds import CoreGroup
from cputrain.machine.limits import ProcessLimits
from cputrain.machine.memory import MachineMemory
from cputrain.machine.numa import Node
from cputrain.machine.ranks import LAUNCHERS, Rank
from cputrain.machine.topology import Domain, Topology
from cputrain.plan import Request, UserValue

GIB = 1 << 30


def subset(draw: Any, cpus: tuple[int, ...]) -> tuple[int, ...] | None:
    """Some of these CPUs, or no restriction."""
    if draw(st.booleans()):
        return None
    return tuple(sorted(draw(st.sets(st.sampled_from(cpus), min_size=1))))


@st.composite
def machines(draw: Any) -> Machine:
    """Cores of one to four threads with gaps in their numbers, on one to four nodes."""
    threads = draw(st.sampled_from((1, 2, 4)))
    count = draw(st.integers(1, 24))
    gap = draw(st.integers(1, 3))
    apart = draw(st.booleans())  # siblings n and n + cores, or neighbours
    cores = tuple(
        tuple(
            gap * (core + thread * count if apart else core * threads + thread)
            for thread in range(threads)
        )
        for core in range(count)
    )
    online = tuple(sorted(cpu for core in cores for cpu in core))
    parts = draw(st.integers(1, min(4, count)))
    groups = [
        tuple(sorted(cpu for core in cores[part::parts] for cpu in core)) for part in range(parts)
    ]
    nodes = tuple(
        Node(id=draw(st.just(2 * number)), cpus=cpus, memory_bytes=GIB, distances=())
        for number, cpus in enumerate(groups)
    )
    frugal = draw(st.integers(0, count))
    kinds = tuple(
        CoreGroup(
            kind=kind, cpus=tuple(sorted(c for core in part for c in core)), max_frequency_hz=None
        )
        for kind, part in (
            (CoreKind.PERFORMANCE, cores[frugal:]),
            (CoreKind.EFFICIENCY, cores[:frugal]),
        )
        if part
    )
    topology = Topology(
        online=online, offline=(), cores=cores, dies=(), sockets=(online,), l1_domains=(),
        l2_domains=(), l3_domains=tuple(Domain(cpus=cpus, size_bytes=None) for cpus in groups),
    )  # fmt: skip
    total = draw(st.none() | st.integers(1 << 20, 4096 * GIB))
    limits = ProcessLimits(
        affinity=subset(draw, online),
        cpuset=subset(draw, online),
        quota_cpus=draw(st.none() | st.floats(0.01, 2.0 * len(online))),
        slurm_cpus=draw(st.none() | st.integers(1, 99)),
        memory_bytes=draw(st.none() | st.integers(1 << 20, 4096 * GIB)),
    )
    return Machine(
        system="linux", vendor="X", family=1, model=1, model_name="X", isa=(), virtual=False,
        topology=topology,
        kinds=kinds if len(kinds) > 1 else (),
        nodes=nodes,
        memory=MachineMemory(
            total_bytes=total, available_bytes=total, shared_huge_pages=None, channels=None,
            huge_pages=draw(st.sampled_from((None, "always", "madvise", "never"))),
        ),
        libc=draw(st.sampled_from((None, (2, 17), (2, 34), (2, 35), (2, 41)))),
        preloads=draw(st.sampled_from(({}, {"tcmalloc": "/usr/lib/libtcmalloc.so.4"}))),
        gpu_driver=draw(st.sampled_from(("", "nvidia"))),
        limits=limits,
        unknown={},
        budget=make_budget(topology, limits, total),
    )  # fmt: skip


ENVIRONMENTS = st.dictionaries(
    st.sampled_from(
        (
            "OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD", "GLIBC_TUNABLES", "OMP_PROC_BIND",
            "MALLOC_TRIM_THRESHOLD_", "KMP_AFFINITY", "TORCHELASTIC_RUN_ID", "PATH",
        )
    ),
    st.sampled_from(("", "1", "4", "x", "/l/libjemalloc.so", "glibc.malloc.hugetlb=2", "\u00b2")),
    max_size=4,
)  # fmt: skip

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "threads": st.sampled_from(("auto", "1")),
        "interop_threads": st.sampled_from(("auto", "1")),
        "placement": st.sampled_from(("auto", "none", "cores")),
        "memory_policy": st.sampled_from(("auto", "local", "interleave")),
        "loader_cores": st.sampled_from(("auto", "shared")),
        "allocator": st.sampled_from(("auto", "default", "/l/libx.so")),
        "huge_pages": st.sampled_from(("auto", "on", "off")),
        "start_method": st.sampled_from(("auto", "spawn")),
        "flush_denormals": st.sampled_from(("auto", "on", "off")),
        "fused_optimizer": st.sampled_from(("auto", "on", "off")),
        "optimizer_states": st.sampled_from(("auto", "full", "8bit")),
    },
).map(lambda found: {name: UserValue(value=value, where="here") for name, value in found.items()})


@st.composite
def ranks(draw: Any) -> Rank | None:
    """A rank of one of the launchers, or a process alone."""
    if draw(st.booleans()):
        return None
    launcher, _, _, binds = draw(st.sampled_from(LAUNCHERS))
    count = draw(st.integers(2, 30))
    index = draw(st.integers(0, count - 1))
    return Rank(launcher=launcher, index=index, count=count, binds=binds)


REQUESTS = st.builds(
    lambda settings, environment, rank: Request(
        settings=settings, environment=environment, rank=rank
    ),
    SETTINGS,
    ENVIRONMENTS,
    ranks(),
)
