"""Process pools that are compared, each used as documented; none is imported here.

To add a pool, write a context manager that yields its `Ways`, and add a line to `CONTENDERS`.
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
    """Methods of a pool, with uniform signatures."""

    one_by_one: Callable[[Function, Sequence[int], int | None], Iterable[Any]]
    """Iterate over results in order (imap); the last argument is the chunksize."""

    kept: Callable[[Function, Sequence[int], int | None], list[Any]]
    """Return all results (map); the last argument is the chunksize."""

    with_partial: Callable[[Function, Any, Sequence[int]], list[Any]]
    """Map `partial(function, big)` over the items."""

    with_argument: Callable[[Function, Any, Sequence[int]], list[Any]]
    """Map `function(big, item)` over the items, with the large argument in every task."""

    filled: Callable[[Function, Any], None]
    """Fill a tensor by `function(rows, slice of the tensor, seed)`."""


class Contender(Record):
    """Process pool, and the cases in which it can run."""

    name: str
    """Name in tables."""

    module: str
    """Module imported before the timed part."""

    distribution: str = ""
    """Name for pip install; empty if cputrain requires it anyway."""

    opened: Callable[[int, Any], AbstractContextManager[Ways]]
    """Context manager yielding the pool's `Ways`; takes processes and the large argument."""

    given_early: bool = False
    """Whether the constructor gets the large argument, so that no call sends it."""

    takes_part: Callable[[Case], bool] = lambda _case: True
    """Return whether the pool runs a case; if not, tables do not list it."""

    def why_not(self) -> str:
        """Return why the pool cannot run; empty if it can."""
        if self.distribution and find_spec(self.module) is None:
            return f"it is not installed: pip install {self.distribution}"
        return ""


def _chunks(name: str, size: int | None) -> dict[str, int]:
    return {} if size is None else {name: size}


def _with_imap(imap: Callable[..., Iterable[Any]]) -> Callable[[Function, Any], None]:
    """Return a function that fills a tensor from results, in chunks of `fill`'s size."""

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
    """Yield joblib's loky pool, whose processes outlive each call.

    The large tensor is passed as a NumPy array, since joblib memory-maps only those.
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
            # by default mpire concatenates NumPy results into one array
            lambda function, items, size: pool.map(
                function, items, concatenate_numpy_output=False, **_chunks("chunk_size", size)
            ),
            lambda function, big, items: pool.map(partial(function, big), items),
            lambda function, big, items: pool.map(function, [(big, item) for item in items]),
            # mpire would unpack an iterable item into several arguments
            _with_imap(lambda function, items: pool.imap(function, [(item,) for item in items])),
        )


@contextmanager
def _mpire_shared(processes: int, big: Any) -> Iterator[Ways]:
    """Yield mpire's pool with the large argument in the constructor, inherited by fork."""
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
