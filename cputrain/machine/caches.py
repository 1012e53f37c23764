"""Data caches from sysfs: their sizes, and the logical CPUs that share each of them."""

from __future__ import annotations

from cputrain.machine.source import number, text
from cputrain.machine.topology import CPU_FOLDER, Cpus, Domain, read_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cputrain.machine.source import Source

SPARC_CACHES = ((1, "l1_dcache_size"), (2, "l2_cache_size"))
"""Cache level and file name on SPARC, where sizes are in bytes and sharing is not reported."""


def read_caches(
    source: Source, cores: Iterable[Cpus], online: Cpus
) -> dict[int, tuple[Domain, ...]]:
    """Return the data and unified caches by level, each as the online CPUs that share it."""
    online_set = set(online)
    domains_by_level: dict[int, dict[Cpus, Domain]] = {}
    covered: dict[int, set[int]] = {}
    for core in cores:
        known_names: tuple[str, ...] = ()
        for cpu in core:
            names = source.names(f"{CPU_FOLDER}/cpu{cpu}/cache")
            if names and names == known_names and all(cpu in cpus for cpus in covered.values()):
                continue  # a sibling listed all caches: saves thousands of reads on large machines
            known_names = known_names or names
            for level, sharers, size in _caches_of(source, cpu, names):
                if cpu in covered.setdefault(level, set()):
                    continue
                # Itanium leaves the CPU map empty for a cache that is private to a core.
                shared = core if sharers == () else sharers or ()
                cpus = tuple(sorted(online_set & {cpu}.union(shared)))
                domains_by_level.setdefault(level, {})[cpus] = Domain(cpus=cpus, size_bytes=size)
                covered[level].update(cpus)
    return {
        level: tuple(domains[cpus] for cpus in sorted(domains))
        for level, domains in domains_by_level.items()
    }


def _caches_of(
    source: Source, cpu: int, names: tuple[str, ...]
) -> Iterator[tuple[int, Cpus | None, int | None]]:
    """Yield level, sharing CPUs and size of each cache of a CPU, except instruction caches."""
    folder = f"{CPU_FOLDER}/cpu{cpu}"
    for index in (f"{folder}/cache/{name}" for name in names if name.startswith("index")):
        level = number(source, f"{index}/level")
        if level is None or text(source, f"{index}/type") == "Instruction":
            continue
        sharers = read_cpus(source, f"{index}/shared_cpu_map", f"{index}/shared_cpu_list")
        yield level, sharers, _size(text(source, f"{index}/size"))
    for level, name in () if names else SPARC_CACHES:
        size = number(source, f"{folder}/{name}")
        if size:
            yield level, None, size


def _size(size: str | None) -> int | None:
    """Parse a size such as "32K", "36M" or "512" into bytes; None if it is none."""
    if not size:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1].upper(), 1)
    digits = size if scale == 1 else size[:-1].rstrip()
    return (int(digits) * scale or None) if digits.isdecimal() else None
