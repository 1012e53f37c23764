"""The process that measures what this machine can do at best, through torch: JSON in, JSON out.

Of some products it measures the time of each: {"threads": 2, "products": [[64, 64, 8, "float32"]]}.

    python -m cputrain.diagnose.measuring '{"cores": 8, "l2_bytes": 1048576, "l3_bytes": 33554432,
                                            "memory_bytes": 8589934592}'

Each figure is the best of short runs: a roof is what can be reached, and whatever else is going on
only lowers it.
"""

from __future__ import annotations

import json
import sys
import time

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SECONDS = 0.25
"""Of each figure, at least."""

SIDES = (1024, 2048, 3072, 4096)
"""Of square matrices: one is the fastest, and which depends on the caches."""

SMALL = 64
"""Elements of a tensor with which only the way to the operator counts."""

FULL = 4
"""Times the last cache that lie in main memory whatever is kept."""

LEAST = 1 << 26
MOST = 1 << 30
"""Bytes of each of three arrays in main memory."""


def main(argv: list[str]) -> int:
    """Measure and print."""
    asked = json.loads(argv[0])
    print(json.dumps(timed(**asked) if "products" in asked else measured(**asked)))
    return 0


def measured(cores: int, l2_bytes: int, l3_bytes: int, memory_bytes: int) -> dict[str, Any]:
    """All figures; of one thread, of all, and of numbers between for those that show a shape."""
    teams = sorted({1, cores, *(2**power for power in range(cores.bit_length()))})
    teams = [one for one in teams if one <= cores]
    flops: dict[str, dict[str, float]] = {}
    for name in ("float32", "bfloat16", *(("int8",) if _has_int8() else ())):
        dtype = getattr(torch, name)
        flops[name] = {str(count): _product(dtype, count) for count in (teams[0], teams[-1])}
    whole = min(MOST, max(LEAST, FULL * l3_bytes // 3), memory_bytes // 16)
    bandwidth = {
        "memory": {str(count): _triad(whole, count) for count in teams},
        "l3": {str(count): _triad(l3_bytes // 6, count) for count in (1, cores)},
        "l2": _own(_triad(l2_bytes // 6, 1), _triad(cores * l2_bytes // 6, cores), cores),
    }
    return {
        "torch": torch.__version__,
        "cores": cores,
        "flops_per_s": flops,
        "bandwidth_bytes_per_s": bandwidth,
        "team_seconds": {str(count): _team(count) for count in teams},
        "call_seconds": _call(),
        "fault_seconds": _fault(),
    }


def timed(products: list[tuple[int, int, int, str]], threads: int) -> list[float]:
    """Seconds of each product: rows, columns, what is summed over, and the type."""
    torch.set_num_threads(threads)
    return [best(product(getattr(torch, dtype), *sides)) for *sides, dtype in products]


def best(run: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Seconds of the fastest of several runs."""
    run()
    found, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        run()
        now = time.perf_counter()
        found = min(found, now - begin)
        if now > end:
            return found


def _has_int8() -> bool:
    """Whether torch reaches the CPU's units for products of whole numbers."""
    one = torch.ones((32, 32), dtype=torch.int8)
    try:
        torch._int_mm(one, one)
    except (AttributeError, RuntimeError):  # a torch, or a CPU, that cannot
        return False
    return True


def _product(dtype: torch.dtype, threads: int) -> float:
    """Operations in a second of the best product of two matrices."""
    torch.set_num_threads(threads)
    found = 0.0
    for side in SIDES:
        seconds = best(product(dtype, side, side, side))
        rate = 2 * side**3 / seconds
        if rate < found or seconds > 1:
            return max(rate, found)
        found = rate
    return found


def product(dtype: torch.dtype, rows: int, columns: int, inner: int) -> Callable[[], Any]:
    """That of two matrices."""
    one, other = (
        torch.full((rows, inner), 0.5).to(dtype),
        torch.full((inner, columns), 0.5).to(dtype),
    )
    if dtype is torch.int8:
        whole = torch.empty((rows, columns), dtype=torch.int32)
        return lambda: torch._int_mm(one, other, out=whole)
    out = torch.empty((rows, columns), dtype=dtype)
    return lambda: torch.mm(one, other, out=out)


def _triad(each: int, threads: int) -> float:
    """Bytes in a second of a = b + s * c, or of a = b, over arrays of so many bytes."""
    torch.set_num_threads(threads)
    count = max(SMALL, each // 4)
    a, b, c = (torch.ones(count) for _ in range(3))
    again = max(1, (1 << 20) // (4 * count))  # more than the clock's steps

    def add() -> None:
        for _ in range(again):
            torch.add(b, c, alpha=0.5, out=a)

    def copy() -> None:
        for _ in range(again):
            a.copy_(b)

    both = (3 * 4 * count * again / best(add), 2 * 4 * count * again / best(copy))
    return max(both)


def _own(one: float, together: float, cores: int) -> dict[str, float]:
    """Of caches that each core has for itself: the time in which a team of threads begins and ends
    hides what they have together."""
    return {"1": one, str(cores): max(together, cores * one)}


def _team(threads: int) -> float:
    """What it costs to have a team of threads begin and end."""
    torch.set_num_threads(threads)
    one = torch.ones(threads * (1 << 15))  # as much for each as torch divides at all
    small = torch.ones(1 << 15)
    together = best(lambda: one.neg_(), SECONDS / 4)
    torch.set_num_threads(1)
    alone = best(lambda: small.neg_(), SECONDS / 4)
    return max(0.0, together - alone)


def _call() -> float:
    """Of an operator with next to nothing to do."""
    torch.set_num_threads(1)
    one, out = torch.ones(SMALL), torch.empty(SMALL)

    def run() -> None:
        for _ in range(100):
            torch.neg(one, out=out)

    return best(run, SECONDS / 4) / 100


def _fault() -> float:
    """Of a page of memory that is touched for the first time, and given back."""
    import mmap

    size, page = 1 << 25, mmap.PAGESIZE

    def run() -> None:
        with mmap.mmap(-1, size) as there:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                there.madvise(mmap.MADV_NOHUGEPAGE)
            whole = torch.frombuffer(there, dtype=torch.uint8)
            whole[::page].fill_(1)
            del whole

    return best(run, SECONDS / 4) / (size // page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
