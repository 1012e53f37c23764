"""The process that measures what this machine can do at best, through torch: JSON in, JSON out.

Of some products it measures the time of each: {"threads": 2, "products": [[64, 64, 8, "float32"]]}.

    python -m cputrain.diagnose.measuring '{"cores": 8, "l2_bytes": 1048576, "l3_bytes": 33554432,
                                            "memory_bytes": 8589934592, "cpus": [0, 1, 2, …]}'

Each figure is the best of short runs: a roof is what can be reached, and whatever else is going on
only lowers it. Some runs are short enough to fit between two turns of another program. A figure is
measured again where others used the CPUs meanwhile; where they go on, it says so.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from itertools import cycle

import torch

from cputrain.runtime.counted import Counters, others_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SECONDS = 0.25
"""Of each figure, at least."""

SHORT_SECONDS = 0.1
"""Of one that is measured in several ways."""

SIDES = (256, 512, 1024, 2048, 3072, 4096)
"""Of square matrices: one is the fastest, and which depends on the caches and on who else runs."""

LARGE = 1024
"""Sides from which on a slower product ends the search."""

CHANNELS, IMAGE, KERNEL = 128, 28, 3
"""Of a convolution, which may be faster than any product: it has another library's kernels."""

NUM_SMALL = 64
"""Elements of a tensor with which only the way to the operator counts."""

NUM_PART = 1 << 20
"""Elements of an array that are gone over at once, for each four threads."""

NUM_DENORMALS = 1 << 15
"""Of a tensor that one thread goes over."""

FULL = 4
"""Times the last cache that lie in main memory whatever is kept."""

MIN_BYTES = 1 << 26
MAX_BYTES = 1 << 30
"""Of each of three arrays in main memory."""

MAX_REPEATS = 2
"""Times that a figure is measured again where it was disturbed."""

PATIENCE = 6.0
"""Seconds for that, of all figures together."""

CPUS_OF_OTHERS = 0.1
"""CPUs that others may use without disturbing; beside it `SHARE_OF_OTHERS` of those there are, and
half of those that are not needed."""

SHARE_OF_OTHERS = 0.005

TICK = 0.02
"""Seconds by which the system's account of a CPU may be wrong."""

WAITING = 0.05
"""Part of its CPU time for which this process may wait for a CPU."""


def main(argv: list[str]) -> int:
    """Measure and print."""
    request = json.loads(argv[0])
    print(json.dumps(timed(**request) if "products" in request else measured(**request)))
    return 0


class Watch:
    """Measures figures, and looks whether others used the CPUs meanwhile."""

    def __init__(self, counters: Counters, cores: int) -> None:
        """Watch over measurements with so many threads on the CPUs of these counters."""
        self._counters = counters
        num_cpus = max(len(counters.cpus), cores)
        # on a machine with hardware threads, half of the CPUs are no cores of their own
        self._allowed = (
            CPUS_OF_OTHERS + SHARE_OF_OTHERS * num_cpus + max(0, num_cpus - 2 * cores) / 2
        )
        self._num_cpus = num_cpus
        self._began = self._now()
        self._repeats_s = PATIENCE
        self._num_disturbed = 0

    def highest(self, measure: Callable[[], float]) -> float:
        """Return the highest of several measurements, where the first was disturbed."""
        return self._best(measure, max)

    def lowest(self, measure: Callable[[], float]) -> float:
        """Return the lowest of several measurements, where the first was disturbed."""
        return self._best(measure, min)

    def _best(self, measure: Callable[[], float], choose: Callable[[list[float]], float]) -> float:
        values = []
        for _ in range(1 + MAX_REPEATS):
            before = self._now()
            values.append(measure())
            counted = self._since(before)
            if not self.faults(counted):
                return choose(values)
            if self._repeats_s < counted["at"]:
                break
            self._repeats_s -= counted["at"]
        self._num_disturbed += 1
        return choose(values)

    def rough(self) -> list[str]:
        """Return why the figures are rough; nothing where no one disturbed them."""
        faults = self.faults(self._since(self._began))
        if self._num_disturbed and not faults:
            faults = [f"{self._num_disturbed} figures were disturbed by other programs"]
        return [f"while this machine was measured, {fault}" for fault in faults]

    def faults(self, counted: dict[str, float]) -> list[str]:
        """Return what disturbed a measurement with these counters."""
        elapsed_s = max(counted["at"], 1e-9)
        others = others_seconds(counted) / elapsed_s
        stolen = counted["steal_seconds"] / elapsed_s
        slack = TICK * self._num_cpus / elapsed_s
        used_s = counted.get("user_seconds", 0.0) + counted.get("system_seconds", 0.0)
        found = []
        if stolen > self._allowed + slack:
            found.append(f"other machines of this host used {stolen:.1f} CPUs")
        elif others > self._allowed + slack:
            found.append(f"other programs used {others:.1f} CPUs")
        elif not counted["busy_seconds"] and counted["pressure_seconds"] > WAITING * elapsed_s:
            found.append("programs waited for a CPU")
        if counted["throttled_seconds"]:
            found.append("the container's share of the CPU was used up")
        if not found and counted["waiting_seconds"] > WAITING * used_s + TICK:
            found.append("its threads waited for a CPU")
        return found

    def _now(self) -> dict[str, float]:
        return {**self._counters.now(), "at": time.perf_counter()}

    def _since(self, before: dict[str, float]) -> dict[str, float]:
        now = self._now()
        return {name: max(0.0, now[name] - before[name]) for name in now}


def measured(
    cores: int, l2_bytes: int, l3_bytes: int, memory_bytes: int, cpus: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Measure every figure: with one thread, with all, and between where the number matters."""
    watch = Watch(Counters(cpus=tuple(cpus) or None), cores)
    ends = sorted({1, cores})
    teams = sorted({*ends, *(2**power for power in range(cores.bit_length()) if 2**power < cores)})
    names = ("float32", "bfloat16", *(("int8",) if _has_int8() else ()))
    flops = {
        name: {
            str(count): watch.highest(partial(_fastest, getattr(torch, name), count))
            for count in ends
        }
        for name in names
    }
    whole = min(MAX_BYTES, max(MIN_BYTES, FULL * l3_bytes // 3), memory_bytes // 16)
    streaming: dict[str, dict[str, float]] = {}
    bandwidth: dict[str, dict[str, float]] = {}
    for level, counts, size_bytes in (
        ("memory", teams, whole),
        ("l3", ends, l3_bytes // 6),
        ("l2", ends, l2_bytes // 6),
    ):
        for count in counts:
            each = count * size_bytes if level == "l2" else size_bytes
            stream = watch.highest(partial(_streaming, each, count))
            single = watch.highest(partial(_single, each, count))
            streaming.setdefault(level, {})[str(count)] = stream
            bandwidth.setdefault(level, {})[str(count)] = max(stream, single)
    # each core has one of these caches for itself: the time in which a team of threads begins and
    # ends hides what they have together
    for table in (streaming["l2"], bandwidth["l2"]):
        table[str(cores)] = max(table[str(cores)], cores * table["1"])
    return {
        "torch": torch.__version__,
        "cores": cores,
        "flops_per_s": flops,
        "bandwidth_bytes_per_s": bandwidth,
        "streaming_bytes_per_s": streaming,
        "cache_bytes": {"l2": float(l2_bytes), "l3": float(l3_bytes)},
        "team_seconds": {str(count): watch.lowest(partial(_team, count)) for count in teams},
        "call_seconds": watch.lowest(_call),
        "fault_seconds": watch.lowest(_fault),
        "denormal_seconds": watch.lowest(_denormal),
        "measurements": 1,
        "rough": watch.rough(),
    }


def timed(products: list[tuple[int, int, int, str]], threads: int) -> list[float]:
    """Return the seconds of each product: rows, columns, what is summed over, and the type."""
    torch.set_num_threads(threads)
    return [best(product(getattr(torch, dtype), *sides)) for *sides, dtype in products]


def best(run: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Return the seconds of the fastest of several runs."""
    run()
    fastest_s, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        run()
        now = time.perf_counter()
        fastest_s = min(fastest_s, now - begin)
        if now > end:
            return fastest_s


def _has_int8() -> bool:
    """Return whether torch reaches the CPU's units for products of whole numbers."""
    ones = torch.ones((32, 32), dtype=torch.int8)
    try:
        torch._int_mm(ones, ones)
    except (AttributeError, RuntimeError):  # a torch, or a CPU, that cannot
        return False
    return True


def _fastest(dtype: torch.dtype, threads: int) -> float:
    """Return the operations in a second of the fastest product of two matrices, or convolution."""
    torch.set_num_threads(threads)
    highest = 0.0
    for side in SIDES:
        seconds = best(product(dtype, side, side, side), SHORT_SECONDS)
        rate = 2 * side**3 / seconds
        if seconds > 1 or (side > LARGE and rate < 0.9 * highest):
            highest = max(rate, highest)
            break
        highest = max(rate, highest)
    if dtype is torch.int8:
        return highest
    batch = max(4, threads)
    # without products with padding
    flops = 2 * batch * CHANNELS**2 * (KERNEL * IMAGE - 2) ** 2
    if flops / highest > 1:
        return highest
    return max(highest, flops / best(_convolution(dtype, batch), SHORT_SECONDS))


def product(dtype: torch.dtype, rows: int, columns: int, inner: int) -> Callable[[], Any]:
    """Return a function that multiplies two matrices."""
    left, right = (
        torch.full((rows, inner), 0.5).to(dtype),
        torch.full((inner, columns), 0.5).to(dtype),
    )
    if dtype is torch.int8:
        whole = torch.empty((rows, columns), dtype=torch.int32)
        return lambda: torch._int_mm(left, right, out=whole)
    out = torch.empty((rows, columns), dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _convolution(dtype: torch.dtype, batch: int) -> Callable[[], Any]:
    """Return a function that convolves images with their channels last."""
    images = torch.full((batch, CHANNELS, IMAGE, IMAGE), 0.5, dtype=dtype)
    weight = torch.full((CHANNELS, CHANNELS, KERNEL, KERNEL), 0.5, dtype=dtype)
    images, weight = (
        each.contiguous(memory_format=torch.channels_last) for each in (images, weight)
    )
    return lambda: torch.conv2d(images, weight, padding=1)


def _streaming(each: int, threads: int) -> float:
    """Return the bytes in a second of a = b + s * c, or of a = b, over arrays of so many bytes."""
    torch.set_num_threads(threads)
    parts = _parts(each, threads, 3)
    return max(
        _rate(parts, 3, SECONDS, lambda a, b, c: torch.add(b, c, alpha=0.5, out=a)),
        _rate(parts, 2, SECONDS, lambda a, b, _: a.copy_(b)),
    )


def _single(each: int, threads: int) -> float:
    """Return the bytes in a second of a pass over one array: in place, reading or writing it."""
    torch.set_num_threads(threads)
    parts = _parts(each, threads, 1)
    return max(
        _rate(parts, 2, SHORT_SECONDS, lambda a: a.neg_()),
        _rate(parts, 1, SHORT_SECONDS, lambda a: a.amax()),
        _rate(parts, 1, SHORT_SECONDS, lambda a: a.fill_(1.0)),
    )


def _parts(each: int, threads: int, num_arrays: int) -> list[tuple[torch.Tensor, ...]]:
    """Return parts of arrays of so many bytes: each takes less than a turn of another program."""
    arrays = [torch.ones(max(NUM_SMALL, each // 4)) for _ in range(num_arrays)]
    length = NUM_PART * max(1, threads // 4)
    return list(zip(*(torch.split(array, length) for array in arrays), strict=True))


def _rate(
    parts: list[tuple[torch.Tensor, ...]],
    num_passes: int,
    seconds: float,
    run: Callable[..., Any],
) -> float:
    """Return the most bytes in a second of a function that goes over a part so many times.

    The parts take turns, so that none is in a cache still when it comes again, unless all fit.
    """
    whole = [part for part in parts if part[0].numel() == parts[0][0].numel()]
    num_bytes = num_passes * 4 * parts[0][0].numel()
    repeats = (
        max(1, (1 << 22) // num_bytes) if len(whole) == 1 else 1
    )  # more than the clock's steps
    turns = cycle(whole)

    def repeated() -> None:
        part = next(turns)
        for _ in range(repeats):
            run(*part)

    return num_bytes * repeats / best(repeated, seconds)


def _team(threads: int) -> float:
    """Return what it costs to have a team of threads begin and end."""
    torch.set_num_threads(threads)
    large = torch.ones(threads * (1 << 15))  # as much for each as torch divides at all
    small = torch.ones(1 << 15)
    together = best(lambda: large.neg_(), SHORT_SECONDS)
    torch.set_num_threads(1)
    alone = best(lambda: small.neg_(), SHORT_SECONDS)
    return max(0.0, together - alone)


def _call() -> float:
    """Return the time of an operator with next to nothing to do."""
    torch.set_num_threads(1)
    small, out = torch.ones(NUM_SMALL), torch.empty(NUM_SMALL)

    def run() -> None:
        for _ in range(100):
            torch.neg(small, out=out)

    return best(run, SHORT_SECONDS) / 100


def _denormal() -> float:
    """Return what a denormal number takes longer, in the operator that it slows most."""
    torch.set_num_threads(1)
    denormal, normal = torch.full((NUM_DENORMALS,), 1e-40), torch.full((NUM_DENORMALS,), 0.5)
    out = torch.empty(NUM_DENORMALS)

    def cost(run: Callable[[torch.Tensor], Any]) -> float:
        slow, fast = (best(partial(run, each), SHORT_SECONDS / 2) for each in (denormal, normal))
        return max(0.0, slow - fast) / NUM_DENORMALS

    return max(
        cost(lambda each: torch.mul(each, 0.5, out=out)),
        cost(lambda each: torch.div(each, 3.0, out=out)),
        cost(lambda each: torch.sqrt(each, out=out)),
    )


def _fault() -> float:
    """Return the time of a page of memory that is touched for the first time, and given back."""
    import mmap

    size, page = 1 << 25, mmap.PAGESIZE

    def run() -> None:
        with mmap.mmap(-1, size) as area:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                area.madvise(mmap.MADV_NOHUGEPAGE)
            whole = torch.frombuffer(area, dtype=torch.uint8)
            whole[::page].fill_(1)
            del whole

    return best(run, SHORT_SECONDS) / (size // page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
