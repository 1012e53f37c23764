"""Cases of the pool benchmark: functions, tasks and pool methods; imports no torch."""

from __future__ import annotations

import math

from cputrain.bench.pools import tasks
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    Method = Literal[
        "imap", "map", "map partial", "starmap", "fill", "start", "start after threads"
    ]

CASES = {
    "tensors": "2,000 results of 1 MiB: iterated over one by one (imap), and all kept (map)",
    "big": "a tensor of 256 MiB sent to each of 200 tasks: in a partial, and as an argument",
    "fill": "filling a tensor of 40,000 rows, 100 µs each",
    "tiny": "tasks of 10 µs: 100,000 in a map, 5,000 in an imap",
    "arrays": "NumPy arrays as arguments and results: 400 of 1 MB, 6 of 100 MB",
    "huge": "2 results of 2 GiB, iterated over one by one",
    "start": "from the constructor to the first result: in a fresh process, and after torch.mm",
}
"""Description of each group of cases."""


class PoolCase(Record):
    """Function, tasks, and the pool's method that is timed."""

    name: str
    """Unique name: "tensors-kept"."""

    title: str
    """Heading of the case's table."""

    method: Method
    """Pool method that is timed, or "start" to time the pool's start."""

    function: Callable[..., Any]
    """Function that each task calls."""

    num_tasks: int
    """Number of tasks, or of rows if a tensor is filled."""

    chunksize: int | None = None
    """Tasks sent to a worker at once; None for the pool's default."""

    num_elements: int = 0
    """Elements of the large float32 argument; 0 for none."""

    array_bytes: int = 0
    """Size of each task's array argument in bytes; 0 if the arguments are numbers."""

    warm_up_function: Callable[..., Any] | None = None
    """Function of the warm-up tasks, if different from `function`."""

    has_baseline: bool = False
    """Whether to run the case without a pool, too."""


def cases(group: str, quick: bool = False) -> list[PoolCase]:
    """Return the cases of a group; with `quick`, too small for meaningful timings."""
    if group == "tensors":
        num_tasks, size = (24, "16 KiB") if quick else (2_000, "1 MiB")
        function = tasks.tensor_of_16_kib if quick else tasks.tensor_of_1_mib
        return [
            PoolCase(
                name=f"tensors-{name}",
                title=f"tensors back: {num_tasks:,} of {size}, chunks of 1, {how}",
                method=method,
                function=function,
                num_tasks=num_tasks,
                chunksize=1,
            )
            for name, method, how in _methods(
                ("one-by-one", "imap", "taken one by one (imap)"),
                ("kept", "map", "kept all (map)"),
            )
        ]
    if group == "big":
        num_tasks, num_elements = (12, 1 << 18) if quick else (200, 1 << 26)
        return [
            PoolCase(
                name=f"big-{name}",
                title=f"a big argument: {num_elements * 4 >> 20} MiB to each of {num_tasks} tasks, "
                f"{how}",
                method=method,
                function=tasks.sum_of_three,
                num_tasks=num_tasks,
                num_elements=num_elements,
            )
            for name, method, how in _methods(
                ("partial", "map partial", "in a partial (map)"),
                ("argument", "starmap", "as an argument (starmap)"),
            )
        ]
    if group == "fill":
        num_rows = 200 if quick else 40_000
        return [
            PoolCase(
                name="fill-rows",
                title=f"a tensor is filled: {num_rows:,} rows of {tasks.WIDTH} bytes, 100 µs each",
                method="fill",
                function=tasks.write_rows,
                num_tasks=num_rows,
                has_baseline=True,
            )
        ]
    if group == "tiny":
        return [
            PoolCase(
                name=f"tiny-{name}",
                title=f"tiny tasks: {num_tasks:,} of 10 µs, {how}, chunks of each pool's choice",
                method=method,
                function=tasks.compute_10_us,
                num_tasks=num_tasks,
                has_baseline=True,
            )
            for num_tasks, (name, method, how) in zip(
                (400, 100) if quick else (100_000, 5_000),
                _methods(("map", "map", "map"), ("imap", "imap", "imap")),
                strict=True,
            )
        ]
    if group == "arrays":
        sizes = ((24, 10_000), (4, 1_000_000)) if quick else ((400, 1_000_000), (6, 100_000_000))
        return [
            PoolCase(
                name=f"arrays-{name}",
                title=f"arrays out and back: {num_tasks} of {size:,} bytes, chunks of 1 (map)",
                method="map",
                function=tasks.incremented,
                num_tasks=num_tasks,
                chunksize=1,
                array_bytes=size,
                has_baseline=True,
            )
            for name, (num_tasks, size) in zip(("small", "large"), sizes, strict=True)
        ]
    if group == "huge":
        return [
            PoolCase(
                name="huge-results",
                title=f"huge results: 2 tensors of {'16 KiB' if quick else '2 GiB'} come back, "
                "taken one by one (imap)",
                method="imap",
                function=tasks.tensor_of_16_kib if quick else tasks.tensor_of_2_gib,
                num_tasks=2,
                chunksize=1,
                warm_up_function=tasks.tensor_of_16_kib,
            )
        ]
    # workers need no further import for math.isqrt
    return [
        PoolCase(
            name="start-fresh",
            title="start: from the constructor to the first result",
            method="start",
            function=math.isqrt,
            num_tasks=1,
        ),
        PoolCase(
            name="start-after-mm",
            title="start: the same after torch.mm with 2 threads",
            method="start after threads",
            function=math.isqrt,
            num_tasks=1,
        ),
    ]


def _methods(*methods: tuple[str, Method, str]) -> tuple[tuple[str, Method, str], ...]:
    return methods


def find_case(name: str, quick: bool) -> PoolCase:
    """Return the case with the given name; raise StopIteration if there is none."""
    return next(case for group in CASES for case in cases(group, quick) if case.name == name)
