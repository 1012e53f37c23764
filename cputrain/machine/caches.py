"""Caches: how large they are, and which logical CPUs share each of them."""

from __future__ import annotations

from cputrain.machine.source import number, text
from cputrain.machine.topology import CPU_FOLDER, Cpus, Domain, read_cpus_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cputrain.machine.source import Source

SPARC_CACHES = ((1, "l1_dcache_size"), (2, "l2_cache_size"))
"""Its files stand beside the topology, hold bytes, and do not say who shares."""


def read_caches(
    source: Source, cores: Iterable[Cpus], online: Cpus
) -> dict[int, tuple[Domain, ...]]:
    """The caches that hold data, by level."""
    everything = set(online)
    found: dict[int, dict[Cpus, Domain]] = {}
    covered: dict[int, set[int]] = {}
    for core in cores:
        told: tuple[str, ...] = ()
        for cpu in core:
            names = source.names(f"{CPU_FOLDER}/cpu{cpu}/cache")
            if names and names == told and all(cpu in cpus for cpus in covered.values()):
                continue  # its sibling told all: thousands of files fewer on a big machine
            told = told or names
            for level, sharers, size in _caches_of(source, cpu, names):
                if cpu in covered.setdefault(level, set()):
                    continue
                # Itanium leaves the map of a cache empty that a core has to itself
                shared = core if sharers == () else sharers or ()
                cpus = tuple(sorted(everything & {cpu}.union(shared)))
                found.setdefault(level, {})[cpus] = Domain(cpus=cpus, size_bytes=size)
                covered[level].update(cpus)
    return {
        level: tuple(domains[cpus] for cpus in sorted(domains)) for level, domains in found.items()
    }


def _caches_of(
    source: Source, cpu: int, names: tuple[str, ...]
) -> Iterator[tuple[int, Cpus | None, int | None]]:
    """Level, sharers and size of each cache of a CPU, those for instructions left out."""
    folder = f"{CPU_FOLDER}/cpu{cpu}"
    for index in (f"{folder}/cache/{name}" for name in names if name.startswith("index")):
        level = number(source, f"{index}/level")
        if level is None or text(source, f"{index}/type") == "Instruction":
            continue
        sharers = read_cpus_of(source, f"{index}/shared_cpu_map", f"{index}/shared_cpu_list")
        yield level, sharers, _size(text(source, f"{index}/size"))
    for level, name in () if names else SPARC_CACHES:
        size = number(source, f"{folder}/{name}")
        if size:
            yield level, None, size


def _size(found: str | None) -> int | None:
    """Bytes of "32K", "36M" or "512"."""
    if not found:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(found[-1].upper(), 1)
    digits = found if scale == 1 else found[:-1].rstrip()
    return (int(digits) * scale or None) if digits.isdecimal() else None
