"""Process pools that are compared, each used as documented; none is imported here.

To add a pool, write a context manager that yields its `PoolMethods`, and add a line to
`CONTENDERS`.
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

    from cputrain.bench.pools.cases import PoolCase

    Function = Callable[..., Any]

OURS = "cputrain"
"""Name of cputrain's pool."""

NO_POOL = "no pool"
"""Name of the side that calls the function in a loop, without a pool."""


class PoolMethods(NamedTuple):
    """Methods of a pool, with the same signatures for all pools."""

    imap: Callable[[Function, Sequence[int], int | None], Iterable[Any]]
    """Return an iterator over the results, in order; the last argument is the chunksize."""

    map_all: Callable[[Function, Sequence[int], int | None], list[Any]]
    """Return all results; the last argument is the chunksize."""

    map_partial: Callable[[Function, Any, Sequence[int]], list[Any]]
    """Map `partial(function, large)` over the items."""

    starmap_large: Callable[[Function, Any, Sequence[int]], list[Any]]
    """Map `function(large, item)` over the items, with the large argument in every task."""

    fill_tensor: Callable[[Function, Any], None]
    """Fill a tensor by calls of `function(row_numbers, slice_of_the_tensor, seed)`."""


class PoolContender(Record):
    """Process pool that is compared, and the cases in which it can run."""

    name: str
    """Name in tables."""

    module: str
    """Module imported before the timed part."""

    distribution: str = ""
    """Name of its distribution on PyPI; empty if it is always installed with cputrain."""

    open_pool: Callable[[int, Any], AbstractContextManager[PoolMethods]]
    """Context manager that yields the pool's methods; called with processes and large argument."""

    is_argument_in_constructor: bool = False
    """Whether the pool's constructor takes the large argument, so that no call sends it."""

    can_run: Callable[[PoolCase], bool] = lambda _case: True
    """Return whether the pool can run a case; tables omit it if not."""

    def why_not(self) -> str:
        """Return why the pool cannot run; empty if it can."""
        if self.distribution and find_spec(self.module) is None:
            return f"it is not installed: pip install {self.distribution}"
        return ""


def _chunks(name: str, chunksize: int | None) -> dict[str, int]:
    return {} if chunksize is None else {name: chunksize}


def _with_imap(imap: Callable[..., Iterable[Any]]) -> Callable[[Function, Any], None]:
    """Return a function that fills a tensor with the results of imap, one chunk of rows each."""

    def fill_tensor(function: Function, out: Any) -> None:
        row_chunks = tasks.row_chunks(len(out))
        results = imap(partial(tasks.filled_rows, function), row_chunks)
        for chunk, rows in zip(row_chunks, results, strict=True):
            out[chunk.start : chunk.stop] = rows

    return fill_tensor


def _like_multiprocessing(pool: Any) -> PoolMethods:
    return PoolMethods(
        lambda function, items, size: pool.imap(function, items, **_chunks("chunksize", size)),
        lambda function, items, size: pool.map(function, items, **_chunks("chunksize", size)),
        lambda function, large, items: pool.map(partial(function, large), items),
        lambda function, large, items: pool.starmap(function, [(large, item) for item in items]),
        _with_imap(pool.imap),
    )


@contextmanager
def _cputrain(processes: int, _large: Any) -> Iterator[PoolMethods]:
    from cputrain import Pool, fill

    def fill_tensor(function: Function, out: Any) -> None:
        fill(out, function, processes=processes, seed=0, progress=False)

    with Pool(processes) as pool:
        yield _like_multiprocessing(pool)._replace(fill_tensor=fill_tensor)


@contextmanager
def _torch(processes: int, _large: Any) -> Iterator[PoolMethods]:
    from torch.multiprocessing import Pool

    with Pool(processes) as pool:
        yield _like_multiprocessing(pool)


@contextmanager
def _futures(processes: int, _large: Any) -> Iterator[PoolMethods]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes) as pool:
        yield PoolMethods(
            lambda function, items, size: pool.map(function, items, **_chunks("chunksize", size)),
            lambda function, items, size: list(
                pool.map(function, items, **_chunks("chunksize", size))
            ),
            lambda function, large, items: list(pool.map(partial(function, large), items)),
            lambda function, large, items: list(pool.map(function, [large] * len(items), items)),
            _with_imap(pool.map),
        )


@contextmanager
def _joblib(processes: int, _large: Any) -> Iterator[PoolMethods]:
    """Yield joblib's loky pool, whose processes outlive each call.

    The large tensor is passed as a NumPy array, since joblib memory-maps only those.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    def run(return_as: str, delayed_calls: Iterable[Any], size: int | None = None) -> Any:
        return Parallel(n_jobs=processes, return_as=return_as, **_chunks("batch_size", size))(
            delayed_calls
        )

    def calls(function: Function, items: Sequence[int]) -> Iterable[Any]:
        return (delayed(function)(item) for item in items)

    def starmap_large(function: Function, array: Any, items: Sequence[int]) -> Any:
        return run("list", (delayed(function)(array, item) for item in items))

    try:
        yield PoolMethods(
            lambda function, items, size: run("generator", calls(function, items), size),
            lambda function, items, size: run("list", calls(function, items), size),
            lambda function, large, items: run(
                "list", calls(partial(function, large.numpy()), items)
            ),
            lambda function, large, items: starmap_large(function, large.numpy(), items),
            _with_imap(lambda function, items: run("generator", calls(function, items))),
        )
    finally:
        get_reusable_executor().shutdown()


@contextmanager
def _mpire(processes: int, _large: Any) -> Iterator[PoolMethods]:
    from mpire import WorkerPool

    with WorkerPool(processes, keep_alive=True) as pool:
        yield PoolMethods(
            lambda function, items, size: pool.imap(function, items, **_chunks("chunk_size", size)),
            # by default mpire concatenates NumPy results into one array
            lambda function, items, size: pool.map(
                function, items, concatenate_numpy_output=False, **_chunks("chunk_size", size)
            ),
            lambda function, large, items: pool.map(partial(function, large), items),
            lambda function, large, items: pool.map(function, [(large, item) for item in items]),
            # mpire would unpack an iterable item into several arguments
            _with_imap(lambda function, items: pool.imap(function, [(item,) for item in items])),
        )


@contextmanager
def _mpire_shared(processes: int, large: Any) -> Iterator[PoolMethods]:
    """Yield mpire's pool with the large argument in the constructor, inherited by fork."""
    from mpire import WorkerPool

    def map_shared(function: Function, _large: Any, items: Sequence[int]) -> list[Any]:
        results: list[Any] = pool.map(function, items)
        return results

    with WorkerPool(processes, shared_objects=large, keep_alive=True) as pool:
        yield PoolMethods(_unsupported, _unsupported, map_shared, map_shared, _unsupported)


def _unsupported(*_: object) -> Any:
    raise NotImplementedError


@contextmanager
def _no_pool(_processes: int, _large: Any) -> Iterator[PoolMethods]:
    """Yield methods that call the function in this process."""
    yield PoolMethods(
        lambda function, items, _: map(function, items),
        lambda function, items, _: list(map(function, items)),
        lambda function, large, items: list(map(partial(function, large), items)),
        lambda function, large, items: list(starmap(function, [(large, item) for item in items])),
        lambda function, out: function(range(len(out)), out, 0),
    )


CONTENDERS = (
    PoolContender(name=OURS, module="cputrain.pool", open_pool=_cputrain),
    PoolContender(name="torch", module="torch.multiprocessing", open_pool=_torch),
    PoolContender(name="futures", module="concurrent.futures.process", open_pool=_futures),
    PoolContender(name="joblib", module="joblib", distribution="joblib", open_pool=_joblib),
    PoolContender(name="mpire", module="mpire", distribution="mpire", open_pool=_mpire),
    PoolContender(
        name="mpire shared_objects",
        module="mpire",
        distribution="mpire",
        open_pool=_mpire_shared,
        is_argument_in_constructor=True,
        can_run=lambda case: case.num_elements > 0,
    ),
    PoolContender(
        name=NO_POOL, module="math", open_pool=_no_pool, can_run=lambda case: case.has_baseline
    ),
)  # fmt: skip
