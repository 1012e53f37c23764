"""Cases of the pool benchmark; torch is not imported."""

from __future__ import annotations

import math

from cputrain.bench.pools import tasks
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    Way = Literal[
        "one by one", "kept", "partial", "argument", "fill", "start", "start after threads"
    ]

CASES = {
    "tensors": "2,000 tensors of 1 MiB come back: taken one by one, and kept all",
    "big": "a tensor of 256 MiB goes to each of 200 tasks: in a partial, and as an argument",
    "fill": "a tensor of 40,000 rows is filled, each in 100 µs",
    "tiny": "tasks of 10 µs: 100,000 in a map, 5,000 in an imap",
    "arrays": "NumPy arrays go out and come back: 400 of 1 MB, 6 of 100 MB",
    "huge": "results of 2 GiB: 2 tensors, taken one by one",
    "start": "from the constructor to the first result: in a fresh process, and after torch.mm",
}
"""Description of each group of cases."""


class Case(Record):
    """Function, tasks, and the pool's method that is timed."""

    name: str
    """Unique name: "tensors-kept"."""

    title: str
    """Description shown in the table's heading."""

    way: Way
    """Method of the pool that applies the function, which is timed."""

    function: Callable[..., Any]
    """Function that each task calls."""

    count: int
    """Number of tasks, or of rows if a tensor is filled."""

    chunksize: int | None = None
    """Tasks sent to a worker at once; None for the pool's default."""

    elements: int = 0
    """Elements of the large float32 argument; 0 for none."""

    array_bytes: int = 0
    """Size of each task's array argument in bytes; 0 if the arguments are numbers."""

    warmed_with: Callable[..., Any] | None = None
    """Function of the warm-up tasks, if different from `function`."""

    alone: bool = False
    """Whether to run the case without a pool as well."""


def cases(group: str, quick: bool = False) -> list[Case]:
    """Return the cases of a group; with `quick`, too small for meaningful timings."""
    if group == "tensors":
        count, size = (24, "16 KiB") if quick else (2_000, "1 MiB")
        function = tasks.page if quick else tasks.mebibyte
        return [
            Case(
                name=f"tensors-{name}",
                title=f"tensors back: {count:,} of {size}, chunks of 1, {how}",
                way=way,
                function=function,
                count=count,
                chunksize=1,
            )
            for name, way, how in _ways(
                ("one-by-one", "one by one", "taken one by one (imap)"),
                ("kept", "kept", "kept all (map)"),
            )
        ]
    if group == "big":
        count, elements = (12, 1 << 18) if quick else (200, 1 << 26)
        return [
            Case(
                name=f"big-{name}",
                title=f"a big argument: {elements * 4 >> 20} MiB to each of {count} tasks, {how}",
                way=way,
                function=tasks.some_of,
                count=count,
                elements=elements,
            )
            for name, way, how in _ways(
                ("partial", "partial", "in a partial (map)"),
                ("argument", "argument", "as an argument (starmap)"),
            )
        ]
    if group == "fill":
        rows = 200 if quick else 40_000
        return [
            Case(
                name="fill-rows",
                title=f"a tensor is filled: {rows:,} rows of {tasks.WIDTH} bytes, 100 µs each",
                way="fill",
                function=tasks.write_rows,
                count=rows,
                alone=True,
            )
        ]
    if group == "tiny":
        return [
            Case(
                name=f"tiny-{name}",
                title=f"tiny tasks: {count:,} of 10 µs, {how}, chunks of each pool's choice",
                way=way,
                function=tasks.tiny,
                count=count,
                alone=True,
            )
            for count, (name, way, how) in zip(
                (400, 100) if quick else (100_000, 5_000),
                _ways(("map", "kept", "map"), ("imap", "one by one", "imap")),
                strict=True,
            )
        ]
    if group == "arrays":
        sizes = ((24, 10_000), (4, 1_000_000)) if quick else ((400, 1_000_000), (6, 100_000_000))
        return [
            Case(
                name=f"arrays-{name}",
                title=f"arrays out and back: {count} of {size:,} bytes, chunks of 1 (map)",
                way="kept",
                function=tasks.incremented,
                count=count,
                chunksize=1,
                array_bytes=size,
                alone=True,
            )
            for name, (count, size) in zip(("small", "large"), sizes, strict=True)
        ]
    if group == "huge":
        return [
            Case(
                name="huge-results",
                title=f"huge results: 2 tensors of {'16 KiB' if quick else '2 GiB'} come back, "
                "taken one by one (imap)",
                way="one by one",
                function=tasks.page if quick else tasks.two_gibibytes,
                count=2,
                chunksize=1,
                warmed_with=tasks.page,
            )
        ]
    # a function for which workers need no further import
    return [
        Case(
            name="start-fresh",
            title="start: from the constructor to the first result",
            way="start",
            function=math.isqrt,
            count=1,
        ),
        Case(
            name="start-after-mm",
            title="start: the same after torch.mm with 2 threads",
            way="start after threads",
            function=math.isqrt,
            count=1,
        ),
    ]


def _ways(*ways: tuple[str, Way, str]) -> tuple[tuple[str, Way, str], ...]:
    return ways


def case_called(name: str, quick: bool) -> Case:
    """Return the case with the given name."""
    return next(case for group in CASES for case in cases(group, quick) if case.name == name)
