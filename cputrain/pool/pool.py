"""Pool, in the place of multiprocessing's."""

from __future__ import annotations

import itertools
import operator
import os
import warnings
from functools import partial
from multiprocessing import pool as multiprocessing_pool
from multiprocessing import util
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cputrain.errors import SourceError, TaskLost, UsageError
from cputrain.ipc import deferred_signals, keep_interrupts, pipe
from cputrain.machine import read_machine
from cputrain.pool.callbacks import guarded
from cputrain.pool.engine import Engine
from cputrain.pool.events import OnceEvent
from cputrain.pool.packets import Kind
from cputrain.pool.prefetch import LazyResults, Prefetcher
from cputrain.pool.progress import Bar
from cputrain.pool.seeds import seed_from
from cputrain.pool.start import context_for, starting
from cputrain.pool.tasks import Call, Options, Task, are_frozen, name_of, whole_number
from cputrain.pool.worker import Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_FEW_CHUNKS = 64

_pools = itertools.count()


class Pool(multiprocessing_pool.Pool):
    """A pool of processes that does not hang, with multiprocessing's interface.

    Beyond it:

    - `processes`: the cores that may be used, when it is left out;
    - `context`: a multiprocessing context or the name of a start method; left out, workers are
      forked where nothing but this thread runs, and come from a fork server otherwise;
    - `timeout`: seconds that one call of a function may take; its process is killed then;
    - `retries`: how often a task is run again whose process died or was killed;
    - `progress`: show a bar.

    The last three can be given to each method, too, and hold for that call.
    """

    _state: Any = multiprocessing_pool.INIT
    """Also where an interrupt has ended `__init__` before anything else."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        progress: bool = False,
    ) -> None:
        self._state = multiprocessing_pool.INIT
        keep_interrupts()
        if processes is not None:
            if not hasattr(processes, "__index__"):
                raise UsageError(
                    "processes",
                    "must be a whole number",
                    found=repr(processes),
                    do="Leave it out to have one for each core.",
                )
            if processes < 1:
                raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (
            not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0
        ):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._options = Options(timeout, retries, progress).checked()
        self._processes = processes or _cores()
        self._ctx = context_for(context)
        method = self._ctx.get_start_method()
        setup = Setup(
            cpus=() if method == "fork" else _cpus(),
            seed=seed_from(torch.initial_seed(), next(_pools)),
            initializer=initializer,
            initargs=tuple(initargs),
            packed=None,
            max_tasks=maxtasksperchild,
            forked=method == "fork",
        )
        self._engine = Engine(
            self._processes,
            partial(self.Process, self._ctx),
            setup,
            partial(starting, method, self._ctx),
        )
        self._cache = self._engine.calls
        with deferred_signals():  # a Finalize without its number fails when it is called
            self._terminate = util.Finalize(self, self._engine.end_soon, exitpriority=15)
        try:
            self._engine.start()
        except BaseException:  # nothing of it is left, unless it is an interrupt after the start
            self._terminate.cancel()
            self._engine.terminate()
            raise
        self._state = multiprocessing_pool.RUN

    def _check_running(self) -> None:
        super()._check_running()  # type: ignore[misc]
        if not self._engine.is_ours:
            raise UsageError(
                "a pool",
                "must be used by the process that made it",
                found=f"process {os.getpid()}, which was forked off that one",
                do="Make another pool here.",
            )

    @property
    def _pool(self) -> list[Any]:
        return [worker.process for worker in self._engine.crew.workers]

    def __del__(
        self,
        _warn: Any = warnings.warn,
        RUN: str = multiprocessing_pool.RUN,  # noqa: N803  (modules may be gone when this runs)
    ) -> None:
        if self._state == RUN:
            _warn(
                f"unclosed running multiprocessing pool {self!r}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _repopulate_pool(self) -> None:
        self._engine.start_missing()

    # -- one call

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """Have `func(*args, **kwds)` called; the result is asked for with `get()`."""
        self._check_running()
        options = self._options.changed(timeout, retries)
        given = tuple(args), dict(kwds)
        result: Any = None

        def make() -> tuple[Call, list[Task]]:
            nonlocal result
            result = _Result(self, guarded(callback), guarded(error_callback))
            call = Call(result, func, Kind.CALL, f"apply({name_of(func)})", options)
            return call, [Task(call, 0, 0, given)]

        self._engine.begin(make)
        return result

    def apply(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """`func(*args, **kwds)`, in a worker."""
        return self.apply_async(func, args, kwds, timeout=timeout, retries=retries).get()

    # -- a list

    def map(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> list[Any]:
        """`[func(item) for item in iterable]`."""
        options = self._options.changed(timeout, retries, progress)
        return self._list(Kind.EACH, func, iterable, chunksize, options)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> list[Any]:
        """`[func(*item) for item in iterable]`."""
        options = self._options.changed(timeout, retries, progress)
        return self._list(Kind.STAR, func, iterable, chunksize, options)

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """As map, without waiting: the list is asked for with `get()`."""
        options = self._options.changed(timeout, retries)
        listed = _listed(self, iterable, chunksize, callback, error_callback)
        return self._begin(Kind.EACH, func, listed, options)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """As starmap, without waiting."""
        options = self._options.changed(timeout, retries)
        listed = _listed(self, iterable, chunksize, callback, error_callback)
        return self._begin(Kind.STAR, func, listed, options)

    def _list(
        self,
        kind: Kind,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        options: Options,
    ) -> list[Any]:
        listed = _listed(self, iterable, chunksize)
        with Bar(name_of(func), len(listed.items), shown=options.progress) as bar:
            made: list[Any] = self._begin(kind, func, listed._replace(bar=bar), options).get()
            return made

    def _begin(
        self, kind: Kind, func: Callable[..., Any], listed: _Listed, options: Options
    ) -> _ListResult:
        name = f"{'map' if kind is Kind.EACH else 'starmap'}({name_of(func)})"
        items, size = listed.items, listed.chunksize
        result: Any = None

        def make() -> tuple[Call, list[Task]]:
            nonlocal result
            result = _ListResult(self, listed)
            call = Call(result, func, kind, name, options)
            # to look takes as long as to pack a few chunks, which are all sent at once anyway
            call.has_frozen_items = len(items) > _FEW_CHUNKS * size and are_frozen(items)
            chunks = [items[first : first + size] for first in range(0, len(items), size or 1)]
            return call, [
                Task(call, index, index * size, chunk, len(chunk))
                for index, chunk in enumerate(chunks)
            ]

        self._engine.begin(make)
        return result  # type: ignore[no-any-return]

    # -- one by one

    def imap(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = 1,
        *,
        ahead: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> Any:
        """An iterator over `func(item)`, in order.

        Items are taken from `iterable` only `ahead` of those whose results have been asked for:
        it may be endless.
        """
        options = self._options.changed(timeout, retries, progress)
        return self._lazy(func, iterable, chunksize, ahead, options, ordered=True)

    def imap_unordered(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = 1,
        *,
        ahead: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> Any:
        """As imap, each result as soon as it is there."""
        options = self._options.changed(timeout, retries, progress)
        return self._lazy(func, iterable, chunksize, ahead, options, ordered=False)

    def _lazy(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        ahead: int | None,
        options: Options,
        *,
        ordered: bool,
        function_once: bool = False,
    ) -> LazyResults:
        self._check_running()
        chunksize = 1 if chunksize is None else chunksize
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if ahead is not None:
            whole_number("ahead", ahead, at_least=1)
        name = f"{'imap' if ordered else 'imap_unordered'}({name_of(func)})"
        feed = Prefetcher(
            self._engine,
            lambda feed: Call(
                feed,
                func,
                Kind.EACH,
                name,
                options,
                bundles=chunksize == 1,
                function_once=function_once,
            ),
            iterable,
            chunksize=chunksize,
            ahead=ahead,
            ordered=ordered,
            bar=Bar(name_of(func), operator.length_hint(iterable) or None)
            if options.progress
            else None,
        )
        return LazyResults(feed, self._engine, self)

    def _fill(self, func: Callable[[Any], Any], parts: Sequence[Any]) -> LazyResults:
        """As imap_unordered, with the function as it is now for all of the parts."""
        return self._lazy(func, parts, 1, None, self._options, ordered=False, function_once=True)

    # -- the end

    def close(self) -> None:
        """Nothing more will be asked for; workers end when all has been done."""
        if self._state == multiprocessing_pool.RUN:
            self._state = multiprocessing_pool.CLOSE
            self._engine.close()

    def terminate(self) -> None:
        """End all workers now; what is still waited for raises."""
        with deferred_signals():
            self._state = multiprocessing_pool.TERMINATE
            self._terminate()
            self._engine.end_soon()
        self._engine.terminate()

    def join(self) -> None:
        """Wait until all workers have ended, after close or terminate."""
        if self._state == multiprocessing_pool.RUN:
            raise ValueError("Pool is still running")
        self._engine.join()


class _Result(multiprocessing_pool.ApplyResult):  # type: ignore[type-arg]
    """The result of one call; an interrupt of a thread that waits leaves it intact."""

    def __init__(self, pool: Pool, callback: Any, error_callback: Any) -> None:
        super().__init__(pool, callback, error_callback)
        self._event: Any = OnceEvent()


class _Listed(NamedTuple):
    """The items of a call with a list, and who is told of its results."""

    items: list[Any]
    chunksize: int
    callback: Callable[[Any], None] | None
    error_callback: Callable[[Any], None] | None
    bar: Bar | None = None


class _ListResult(multiprocessing_pool.MapResult):  # type: ignore[type-arg]
    """The result of a call with a list, chunk by chunk."""

    def __init__(self, pool: Pool, listed: _Listed) -> None:
        length = len(listed.items)
        super().__init__(
            pool,
            listed.chunksize,
            length,
            listed.callback,
            error_callback=listed.error_callback,
        )
        self._event: Any = OnceEvent()
        if not length:
            self._event.set()
        self._chunk = listed.chunksize
        self._length = length
        self._bar = listed.bar

    def _set(self, i: int, success_result: tuple[bool, Any]) -> None:
        if self._bar is not None and not isinstance(success_result[1], TaskLost):
            self._bar.advance(min(self._chunk, self._length - i * self._chunk))
        super()._set(i, success_result)  # type: ignore[misc]


def _listed(
    pool: Pool,
    iterable: Iterable[Any],
    chunksize: int | None,
    callback: Callable[[Any], Any] | None = None,
    error_callback: Callable[[BaseException], Any] | None = None,
) -> _Listed:
    pool._check_running()
    items = list(iterable)
    if chunksize is None:
        chunksize = -(-len(items) // (4 * pool._processes))
    elif chunksize < 1:
        raise ValueError(f"Chunksize must be 1+, not {chunksize}")
    if not items:
        chunksize = 0
    return _Listed(items, chunksize, guarded(callback), guarded(error_callback))


def _cores() -> int:
    try:
        return read_machine(detail=False).budget.physical_cores
    except SourceError:
        for end in pipe():  # if there are no descriptors left, this says so
            os.close(end)
        raise


def _cpus() -> tuple[int, ...]:
    """Where this thread may run: a server that forks workers may have been given less."""
    return tuple(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
