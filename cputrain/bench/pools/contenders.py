"""The pools that are compared, each used as its documentation does. This loads none of them.

To add one: a function that opens a pool and yields its `Ways`, and a line in `CONTENDERS`.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from cputrain.bench.pools import tasks
from cputrain.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from cputrain.bench.pools.cases import Case

    Function = Callable[..., Any]

OURS = "cputrain"
ALONE = "no pool"


class Ways(NamedTuple):
    """What a pool can be asked for."""

    one_by_one: Callable[[Function, Sequence[int], int | None], Iterable[Any]]
    """Results in order, as they come; the number is the chunksize."""

    kept: Callable[[Function, Sequence[int], int | None], list[Any]]
    """All results."""

    with_partial: Callable[[Function, Any, Sequence[int]], list[Any]]
    """`function(big, item)` for each item, the big thing bound to the function."""

    with_argument: Callable[[Function, Any, Sequence[int]], list[Any]]
    """The same, the big thing given with each item."""

    filled: Callable[[Function, Any], None]
    """`function(rows, part of the tensor, seed)` writes all rows of a tensor."""


class Contender(Record):
    """One pool."""

    name: str
    """What the tables call it."""

    module: str
    """What is imported before any clock runs."""

    distribution: str = ""
    """What pip installs; empty where cputrain needs it anyhow."""

    opened: Callable[[int, Any], AbstractContextManager[Ways]]
    """A pool of so many processes; the big thing, if there is one, for who wants it so early."""

    given_early: bool = False
    """Whether the big thing is given to the constructor, so that no call sends it."""

    takes_part: Callable[[Case], bool] = lambda _case: True
    """Whether a case is one for it; where not, it is not mentioned."""

    def why_not(self) -> str:
        """Why it takes no part; empty if it does."""
        if self.distribution and find_spec(self.module) is None:
            return f"it is not installed: pip install {self.distribution}"
        return ""


def _chunks(name: str, size: int | None) -> dict[str, int]:
    return {} if size is None else {name: size}


def _with_imap(imap: Callable[..., Iterable[Any]]) -> Callable[[Function, Any], None]:
    """A tensor is filled with what comes back: parts of as many rows as `fill` has in its own."""

    def filled(function: Function, out: Any) -> None:
        parts = tasks.parts(len(out))
        made = imap(partial(tasks.rows, function), parts)
        for part, rows in zip(parts, made, strict=True):
            out[part.start : part.stop] = rows

    return filled


def _like_multiprocessing(pool: Any) -> Ways:
    return Ways(
        lambda function, items, size: pool.imap(function, items, **_chunks("chunksize", size)),
        lambda function, items, size: pool.map(function, items, **_chunks("chunksize", size)),
        lambda function, big, items: pool.map(partial(function, big), items),
        lambda function, big, items: pool.starmap(function, [(big, item) for item in items]),
        _with_imap(pool.imap),
    )


@contextmanager
def _cputrain(processes: int, _big: Any) -> Iterator[Ways]:
    from cputrain import Pool, fill

    def filled(function: Function, out: Any) -> None:
        fill(out, function, processes=processes, seed=0, progress=False)

    with Pool(processes) as pool:
        yield _like_multiprocessing(pool)._replace(filled=filled)


@contextmanager
def _torch(processes: int, _big: Any) -> Iterator[Ways]:
    from torch.multiprocessing import Pool

    with Pool(processes) as pool:
        yield _like_multiprocessing(pool)


@contextmanager
def _futures(processes: int, _big: Any) -> Iterator[Ways]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes) as pool:
        yield Ways(
            lambda function, items, size: pool.map(function, items, **_chunks("chunksize", size)),
            lambda function, items, size: list(
                pool.map(function, items, **_chunks("chunksize", size))
            ),
            lambda function, big, items: list(pool.map(partial(function, big), items)),
            lambda function, big, items: list(pool.map(function, [big] * len(items), items)),
            _with_imap(pool.map),
        )


@contextmanager
def _joblib(processes: int, _big: Any) -> Iterator[Ways]:
    """Its processes are those of loky, and outlive each call.

    What it shares by itself are arrays of NumPy, so the big tensor is given to it as one.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    def run(kind: str, calls: Iterable[Any], size: int | None = None) -> Any:
        return Parallel(n_jobs=processes, return_as=kind, **_chunks("batch_size", size))(calls)

    def calls(function: Function, items: Sequence[int]) -> Iterable[Any]:
        return (delayed(function)(item) for item in items)

    def with_argument(function: Function, array: Any, items: Sequence[int]) -> Any:
        return run("list", (delayed(function)(array, item) for item in items))

    try:
        yield Ways(
            lambda function, items, size: run("generator", calls(function, items), size),
            lambda function, items, size: run("list", calls(function, items), size),
            lambda function, big, items: run("list", calls(partial(function, big.numpy()), items)),
            lambda function, big, items: with_argument(function, big.numpy(), items),
            _with_imap(lambda function, items: run("generator", calls(function, items))),
        )
    finally:
        get_reusable_executor().shutdown()


@contextmanager
def _mpire(processes: int, _big: Any) -> Iterator[Ways]:
    from mpire import WorkerPool

    with WorkerPool(processes, keep_alive=True) as pool:
        yield Ways(
            lambda function, items, size: pool.imap(function, items, **_chunks("chunk_size", size)),
            # arrays are results one by one; as it is, they are put together into one
            lambda function, items, size: pool.map(
                function, items, concatenate_numpy_output=False, **_chunks("chunk_size", size)
            ),
            lambda function, big, items: pool.map(partial(function, big), items),
            lambda function, big, items: pool.map(function, [(big, item) for item in items]),
            # what is iterable it would take for several arguments
            _with_imap(lambda function, items: pool.imap(function, [(item,) for item in items])),
        )


@contextmanager
def _mpire_shared(processes: int, big: Any) -> Iterator[Ways]:
    """The big thing is given to the constructor: forked workers inherit it, and nothing is sent."""
    from mpire import WorkerPool

    def given(function: Function, _big: Any, items: Sequence[int]) -> list[Any]:
        found: list[Any] = pool.map(function, items)
        return found

    with WorkerPool(processes, shared_objects=big, keep_alive=True) as pool:
        yield Ways(_not_here, _not_here, given, given, _not_here)


def _not_here(*_: object) -> Any:
    raise NotImplementedError


@contextmanager
def _alone(_processes: int, _big: Any) -> Iterator[Ways]:
    yield Ways(
        lambda function, items, _: map(function, items),
        lambda function, items, _: list(map(function, items)),
        lambda function, big, items: list(map(partial(function, big), items)),
        lambda function, big, items: list(starmap(function, [(big, item) for item in items])),
        lambda function, out: function(range(len(out)), out, 0),
    )


CONTENDERS = (
    Contender(name=OURS, module="cputrain.pool", opened=_cputrain),
    Contender(name="torch", module="torch.multiprocessing", opened=_torch),
    Contender(name="futures", module="concurrent.futures.process", opened=_futures),
    Contender(name="joblib", module="joblib", distribution="joblib", opened=_joblib),
    Contender(name="mpire", module="mpire", distribution="mpire", opened=_mpire),
    Contender(
        name="mpire shared_objects",
        module="mpire",
        distribution="mpire",
        opened=_mpire_shared,
        given_early=True,
        takes_part=lambda case: case.elements > 0,
    ),
    Contender(
        name=ALONE, module="math", opened=_alone, takes_part=lambda case: case.alone
    ),
)  # fmt: skip
