"""Process that measures the machine's roof through torch, with a JSON request and JSON output.

    python -m cputrain.diagnose.roof_benchmark '{"cores": 8, "l2_bytes": 1048576,
        "l3_bytes": 33554432, "memory_bytes": 8589934592, "cpus": [0, 1, 2, …]}'

A request {"threads": 2, "products": [[64, 64, 8, "float32"]]} measures the time of matrix products
instead.

Each figure is the best of many short repetitions, since a disturbance can only lower it. Some
repetitions are short enough to fit between two time slices of another program. A figure is measured
again if other processes used the CPUs meanwhile; if they continue, the output says so in "rough".
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from itertools import cycle

import torch

from cputrain.counting import counted
from cputrain.runtime.counters import Counters, other_cpu_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MEASURE_S = 0.25
"""Seconds of repetitions of a figure."""

SHORT_MEASURE_S = 0.1
"""Seconds of repetitions of a figure that is the best of several kernels."""

SIDES = (256, 512, 1024, 2048, 3072, 4096)
"""Sides of the square matrices; the fastest depends on caches and on other processes."""

LARGE_SIDE = 1024
"""Side above which a slower product ends the search for the peak."""

MAX_PRODUCT_S = 0.25
"""Predicted seconds, from the rate of smaller matrix products, above which one is not computed."""

CHANNELS, IMAGE, KERNEL = 128, 28, 3
"""Channels, image side and kernel side of a convolution: oneDNN may beat every matrix product."""

NUM_SMALL = 64
"""Elements of a tensor so small that only the overhead of an operator call counts."""

NUM_CHUNK = 1 << 20
"""Elements of the chunk of an array that one repetition reads or writes, per four threads."""

NUM_DENORMALS = 1 << 15
"""Elements of a tensor that one thread processes."""

L3_MULTIPLE = 4
"""Multiple of the L3 cache that all arrays together must have to be in main memory."""

MIN_ARRAY_BYTES = 1 << 26
MAX_ARRAY_BYTES = 1 << 30
"""Limits for the size of each of three arrays in main memory."""

MAX_REPEATS = 2
"""Largest number of repeats of a disturbed figure."""

MAX_REPEATS_S = 6.0
"""Seconds for the repeats of all figures together."""

TOLERATED_CPUS = 0.1
"""CPUs that other processes may use without disturbing, in addition to `TOLERATED_FRACTION` of all
CPUs and half of the CPUs that are not needed."""

TOLERATED_FRACTION = 0.005
"""Fraction of the CPUs that other processes may use without disturbing."""

TICK_S = 0.02
"""Seconds by which the system's CPU time may be wrong, per CPU."""

WAITING_FRACTION = 0.05
"""Fraction of its CPU time for which this process may wait for a CPU without being disturbed."""


def main(argv: list[str]) -> int:
    """Measure what the request in `argv[0]` names, and print the result as JSON."""
    request = json.loads(argv[0])
    print(
        json.dumps(
            time_products(**request) if "products" in request else measure_figures(**request)
        )
    )
    return 0


class DisturbanceMonitor:
    """Measures figures, and repeats those that other processes disturbed."""

    def __init__(self, counters: Counters, cores: int) -> None:
        """Start observing the counters.

        Args:
            counters: Counters of the CPUs that are measured.
            cores: Largest number of threads that measurements use.
        """
        self._counters = counters
        num_cpus = max(len(counters.cpus), cores)
        # others may use CPUs beyond two per core; half of these are second hardware threads
        self._tolerated_cpus = (
            TOLERATED_CPUS + TOLERATED_FRACTION * num_cpus + max(0, num_cpus - 2 * cores) / 2
        )
        self._num_cpus = num_cpus
        self._at_begin = self._now()
        self._repeats_left_s = MAX_REPEATS_S
        self._num_disturbed = 0

    def highest(self, measure: Callable[[], float]) -> float:
        """Measure a rate; return the highest of several measurements if the first was disturbed."""
        return self._best(measure, max)

    def lowest(self, measure: Callable[[], float]) -> float:
        """Measure a time; return the lowest of several measurements if the first was disturbed."""
        return self._best(measure, min)

    def _best(self, measure: Callable[[], float], choose: Callable[[list[float]], float]) -> float:
        values = []
        for _ in range(1 + MAX_REPEATS):
            before = self._now()
            values.append(measure())
            counted = self._since(before)
            if not self.disturbances(counted):
                return choose(values)
            if self._repeats_left_s < counted["at"]:
                break
            self._repeats_left_s -= counted["at"]
        self._num_disturbed += 1
        return choose(values)

    def rough(self) -> list[str]:
        """Return why the figures are rough; empty if nothing disturbed them."""
        reasons = self.disturbances(self._since(self._at_begin))
        if self._num_disturbed and not reasons:
            reasons = [f"other programs disturbed {counted(self._num_disturbed, 'measurement')}"]
        return [f"while this machine was measured, {reason}" for reason in reasons]

    def disturbances(self, counted: dict[str, float]) -> list[str]:
        """Return what disturbed a measurement, by its counters; empty if nothing did."""
        elapsed_s = max(counted["at"], 1e-9)
        other_cpus = other_cpu_seconds(counted) / elapsed_s
        stolen_cpus = counted["steal_seconds"] / elapsed_s
        slack_cpus = TICK_S * self._num_cpus / elapsed_s
        used_s = counted.get("user_seconds", 0.0) + counted.get("system_seconds", 0.0)
        reasons = []
        if stolen_cpus > self._tolerated_cpus + slack_cpus:
            reasons.append(f"other virtual machines of this host used {stolen_cpus:.1f} CPUs")
        elif other_cpus > self._tolerated_cpus + slack_cpus:
            reasons.append(f"other programs used {other_cpus:.1f} CPUs")
        elif (
            not counted["busy_seconds"]
            and counted["pressure_seconds"] > WAITING_FRACTION * elapsed_s
        ):
            reasons.append("programs waited for a CPU")
        if counted["throttled_seconds"]:
            reasons.append("the container's CPU quota was used up")
        if not reasons and counted["waiting_seconds"] > WAITING_FRACTION * used_s + TICK_S:
            reasons.append("its threads waited for a CPU")
        return reasons

    def _now(self) -> dict[str, float]:
        return {**self._counters.now(), "at": time.perf_counter()}

    def _since(self, before: dict[str, float]) -> dict[str, float]:
        now = self._now()
        return {name: max(0.0, now[name] - before[name]) for name in now}


def measure_figures(
    cores: int, l2_bytes: int, l3_bytes: int, memory_bytes: int, cpus: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a `Roof`, measured with one thread, with all, and with powers of two.

    Args:
        cores: Largest number of threads.
        l2_bytes: Size of one L2 cache.
        l3_bytes: Size of all L3 caches together.
        memory_bytes: Size of main memory.
        cpus: CPUs whose use by other processes disturbs; those of this process by default.
    """
    monitor = DisturbanceMonitor(Counters(cpus=tuple(cpus) or None), cores)
    end_counts = sorted({1, cores})
    thread_counts = sorted(
        {*end_counts, *(2**power for power in range(cores.bit_length()) if 2**power < cores)}
    )
    dtypes = ("float32", "bfloat16", *(("int8",) if _has_int8() else ()))
    flops = {
        name: {
            str(count): monitor.highest(partial(_peak_flops, getattr(torch, name), count))
            for count in end_counts
        }
        for name in dtypes
    }
    memory_array_bytes = min(
        MAX_ARRAY_BYTES, max(MIN_ARRAY_BYTES, L3_MULTIPLE * l3_bytes // 3), memory_bytes // 16
    )
    streaming: dict[str, dict[str, float]] = {}
    bandwidth: dict[str, dict[str, float]] = {}
    for level, counts, level_bytes in (
        ("memory", thread_counts, memory_array_bytes),
        ("l3", end_counts, l3_bytes // 6),
        ("l2", end_counts, l2_bytes // 6),
    ):
        for count in counts:
            array_bytes = count * level_bytes if level == "l2" else level_bytes
            stream = monitor.highest(partial(_stream_bandwidth, array_bytes, count))
            single = monitor.highest(partial(_single_array_bandwidth, array_bytes, count))
            streaming.setdefault(level, {})[str(count)] = stream
            bandwidth.setdefault(level, {})[str(count)] = max(stream, single)
    # each core has its own L2 cache: with all threads, the overhead of the parallel region hides
    # their joint bandwidth
    for table in (streaming["l2"], bandwidth["l2"]):
        table[str(cores)] = max(table[str(cores)], cores * table["1"])
    return {
        "torch": torch.__version__,
        "cores": cores,
        "flops_per_s": flops,
        "bandwidth_bytes_per_s": bandwidth,
        "streaming_bytes_per_s": streaming,
        "cache_bytes": {"l2": float(l2_bytes), "l3": float(l3_bytes)},
        "team_seconds": {
            str(count): monitor.lowest(partial(_parallel_region_overhead, count))
            for count in thread_counts
        },
        "call_seconds": monitor.lowest(_call_overhead),
        "fault_seconds": monitor.lowest(_page_fault_cost),
        "denormal_seconds": monitor.lowest(_denormal_cost),
        "measurements": 1,
        "rough": monitor.rough(),
    }


def time_products(products: list[tuple[int, int, int, str]], threads: int) -> list[float]:
    """Return the seconds of each matrix product: rows, columns, inner dimension, and dtype."""
    torch.set_num_threads(threads)
    return [
        fastest_seconds(matmul_kernel(getattr(torch, dtype), *sides)) for *sides, dtype in products
    ]


def fastest_seconds(run: Callable[[], Any], seconds: float = MEASURE_S) -> float:
    """Return the seconds of the fastest repetition of a function.

    Args:
        run: Function that is repeated, once for warm-up.
        seconds: Seconds of repetitions.
    """
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
    """Return whether this torch and CPU support int8 matrix products."""
    ones = torch.ones((32, 32), dtype=torch.int8)
    try:
        torch._int_mm(ones, ones)
    except (AttributeError, RuntimeError):  # not supported
        return False
    return True


def _peak_flops(dtype: torch.dtype, threads: int) -> float:
    """Return the FLOP/s of the fastest matrix product or convolution."""
    torch.set_num_threads(threads)
    highest = 0.0
    for side in SIDES:
        flops = 2 * side**3
        if flops > MAX_PRODUCT_S * highest > 0:
            break
        rate = flops / fastest_seconds(matmul_kernel(dtype, side, side, side), SHORT_MEASURE_S)
        highest = max(rate, highest)
        if side > LARGE_SIDE and rate < 0.9 * highest:
            break
    if dtype is torch.int8:
        return highest
    batch = max(4, threads)
    # products with padding do not count
    flops = 2 * batch * CHANNELS**2 * (KERNEL * IMAGE - 2) ** 2
    if flops / highest > 1:
        return highest
    return max(highest, flops / fastest_seconds(_conv2d_kernel(dtype, batch), SHORT_MEASURE_S))


def matmul_kernel(dtype: torch.dtype, rows: int, columns: int, inner: int) -> Callable[[], Any]:
    """Return a function that multiplies two matrices into a preallocated result."""
    left, right = (
        torch.full((rows, inner), 0.5).to(dtype),
        torch.full((inner, columns), 0.5).to(dtype),
    )
    if dtype is torch.int8:
        int_out = torch.empty((rows, columns), dtype=torch.int32)
        return lambda: torch._int_mm(left, right, out=int_out)
    out = torch.empty((rows, columns), dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _conv2d_kernel(dtype: torch.dtype, batch: int) -> Callable[[], Any]:
    """Return a function that convolves images in the channels-last memory format."""
    images = torch.full((batch, CHANNELS, IMAGE, IMAGE), 0.5, dtype=dtype)
    weight = torch.full((CHANNELS, CHANNELS, KERNEL, KERNEL), 0.5, dtype=dtype)
    images, weight = (
        tensor.contiguous(memory_format=torch.channels_last) for tensor in (images, weight)
    )
    return lambda: torch.conv2d(images, weight, padding=1)


def _stream_bandwidth(array_bytes: int, threads: int) -> float:
    """Return the bytes per second of STREAM's triad or copy, whichever is higher."""
    torch.set_num_threads(threads)
    chunks = _chunks(array_bytes, threads, 3)
    return max(
        _max_bandwidth(chunks, 3, MEASURE_S, lambda a, b, c: torch.add(b, c, alpha=0.5, out=a)),
        _max_bandwidth(chunks, 2, MEASURE_S, lambda a, b, _: a.copy_(b)),
    )


def _single_array_bandwidth(array_bytes: int, threads: int) -> float:
    """Return the highest bytes per second of an update in place, a reduction and a fill."""
    torch.set_num_threads(threads)
    chunks = _chunks(array_bytes, threads, 1)
    return max(
        _max_bandwidth(chunks, 2, SHORT_MEASURE_S, lambda a: a.neg_()),
        _max_bandwidth(chunks, 1, SHORT_MEASURE_S, lambda a: a.amax()),
        _max_bandwidth(chunks, 1, SHORT_MEASURE_S, lambda a: a.fill_(1.0)),
    )


def _chunks(array_bytes: int, threads: int, num_arrays: int) -> list[tuple[torch.Tensor, ...]]:
    """Allocate float32 arrays, and return corresponding chunks, each shorter than a time slice."""
    arrays = [torch.ones(max(NUM_SMALL, array_bytes // 4)) for _ in range(num_arrays)]
    length = NUM_CHUNK * max(1, threads // 4)
    return list(zip(*(torch.split(array, length) for array in arrays), strict=True))


def _max_bandwidth(
    chunks: list[tuple[torch.Tensor, ...]],
    num_passes: int,
    seconds: float,
    run: Callable[..., Any],
) -> float:
    """Return the highest bytes per second of a function over chunks of equal size.

    The function runs on one chunk after the other, so that a chunk is no longer in a cache on its
    next turn, unless all chunks fit.

    Args:
        chunks: Corresponding chunks of all arrays.
        num_passes: Number of reads and writes of an array by the function.
        seconds: Seconds of repetitions.
        run: Function of a chunk of each array.
    """
    full_chunks = [chunk for chunk in chunks if chunk[0].numel() == chunks[0][0].numel()]
    num_bytes = num_passes * 4 * chunks[0][0].numel()
    # a single small chunk is repeated, to take longer than the clock's resolution
    num_repeats = max(1, (1 << 22) // num_bytes) if len(full_chunks) == 1 else 1
    turns = cycle(full_chunks)

    def repeated() -> None:
        chunk = next(turns)
        for _ in range(num_repeats):
            run(*chunk)

    return num_bytes * num_repeats / fastest_seconds(repeated, seconds)


def _parallel_region_overhead(threads: int) -> float:
    """Return the seconds in which a parallel region of some threads starts and ends."""
    torch.set_num_threads(threads)
    large = torch.ones(threads * (1 << 15))  # torch's grain size per thread
    small = torch.ones(1 << 15)
    parallel_s = fastest_seconds(lambda: large.neg_(), SHORT_MEASURE_S)
    torch.set_num_threads(1)
    serial_s = fastest_seconds(lambda: small.neg_(), SHORT_MEASURE_S)
    return max(0.0, parallel_s - serial_s)


def _call_overhead() -> float:
    """Return the seconds of an operator on a tensor of a few elements."""
    torch.set_num_threads(1)
    small, out = torch.ones(NUM_SMALL), torch.empty(NUM_SMALL)

    def run() -> None:
        for _ in range(100):
            torch.neg(small, out=out)

    return fastest_seconds(run, SHORT_MEASURE_S) / 100


def _denormal_cost() -> float:
    """Return the additional seconds per denormal number in the most affected operator."""
    torch.set_num_threads(1)
    denormal, normal = torch.full((NUM_DENORMALS,), 1e-40), torch.full((NUM_DENORMALS,), 0.5)
    out = torch.empty(NUM_DENORMALS)

    def cost(run: Callable[[torch.Tensor], Any]) -> float:
        slow_s, fast_s = (
            fastest_seconds(partial(run, tensor), SHORT_MEASURE_S / 2)
            for tensor in (denormal, normal)
        )
        return max(0.0, slow_s - fast_s) / NUM_DENORMALS

    return max(
        cost(lambda tensor: torch.mul(tensor, 0.5, out=out)),
        cost(lambda tensor: torch.div(tensor, 3.0, out=out)),
        cost(lambda tensor: torch.sqrt(tensor, out=out)),
    )


def _page_fault_cost() -> float:
    """Return the seconds per page of mapping memory, touching it first, and unmapping it."""
    import mmap

    num_bytes, page_bytes = 1 << 25, mmap.PAGESIZE

    def run() -> None:
        with mmap.mmap(-1, num_bytes) as mapping:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                mapping.madvise(mmap.MADV_NOHUGEPAGE)
            tensor = torch.frombuffer(mapping, dtype=torch.uint8)
            tensor[::page_bytes].fill_(1)
            del tensor

    return fastest_seconds(run, SHORT_MEASURE_S) / (num_bytes // page_bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
