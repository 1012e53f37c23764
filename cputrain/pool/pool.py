"""`Pool`, a drop-in replacement for `multiprocessing.Pool`."""

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

from cputrain.errors import ArgumentTypeError, SourceError, TaskLost, UsageError
from cputrain.ipc import deferred_signals, pipe, redeliver_interrupts
from cputrain.machine import read_machine
from cputrain.pool.callbacks import guarded
from cputrain.pool.engine import Engine
from cputrain.pool.events import OnceEvent
from cputrain.pool.packets import PacketKind
from cputrain.pool.prefetch import LazyResults, Prefetcher
from cputrain.pool.progress import Bar
from cputrain.pool.seeds import seed_from
from cputrain.pool.start import context_for, starting
from cputrain.pool.tasks import Call, Options, Task, are_frozen, name_of, whole_number
from cputrain.pool.worker import WorkerSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_FEW_CHUNKS = 64

_pools = itertools.count()


class Pool(multiprocessing_pool.Pool):
    """A process pool with `multiprocessing.Pool`'s interface that survives killed workers.

    The last three arguments can be passed to each method, too, and override the pool's for that
    call.

    Args:
        processes: Number of workers; by default the number of physical cores that may be used.
        initializer: Function that each worker calls first.
        initargs: Arguments of `initializer`.
        maxtasksperchild: Number of tasks after which a worker is replaced; None keeps it.
        context: A multiprocessing context or the name of a start method. By default, workers are
            forked if no other thread runs, and started by a fork server otherwise.
        timeout: Seconds that one call of a function may take before its process is killed.
        retries: How many times a task is run again whose process exited or was killed.
        progress: Whether to show a progress bar.

    Examples:
        >>> from cputrain import Pool
        >>> with Pool(2) as pool:
        ...     print(pool.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    _state: Any = multiprocessing_pool.INIT
    """A class attribute, so that it exists if an interrupt ends `__init__` early."""

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
        redeliver_interrupts()
        if processes is not None:
            if not hasattr(processes, "__index__"):
                raise ArgumentTypeError(
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
        self._processes = processes or _default_num_workers()
        self._ctx = context_for(context)
        start_method = self._ctx.get_start_method()
        setup = WorkerSetup(
            cpus=() if start_method == "fork" else _allowed_cpus(),
            seed=seed_from(torch.initial_seed(), next(_pools)),
            initializer=initializer,
            initargs=tuple(initargs),
            packed=None,
            max_tasks=maxtasksperchild,
            forked=start_method == "fork",
        )
        self._engine = Engine(
            self._processes,
            partial(self.Process, self._ctx),
            setup,
            partial(starting, start_method, self._ctx),
        )
        self._cache = self._engine.calls
        with deferred_signals():  # a Finalize without its number fails when it is called
            self._terminate = util.Finalize(self, self._engine.end_soon, exitpriority=15)
        try:
            self._engine.start()
        except BaseException:  # the start has cleaned up, unless an interrupt came after it
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
        return [worker.process for worker in self._engine.supervisor.workers]

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

    # -- apply

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
        """Call `func(*args, **kwds)` in a worker; return its result object, with `get()`."""
        self._check_running()
        options = self._options.changed(timeout, retries)
        arguments = tuple(args), dict(kwds)
        result: Any = None

        def make() -> tuple[Call, list[Task]]:
            nonlocal result
            result = _Result(self, guarded(callback), guarded(error_callback))
            call = Call(result, func, PacketKind.CALL, f"apply({name_of(func)})", options)
            return call, [Task(call, 0, 0, arguments)]

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
        """Return `func(*args, **kwds)`, called in a worker."""
        return self.apply_async(func, args, kwds, timeout=timeout, retries=retries).get()

    # -- map

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
        """Return `[func(item) for item in iterable]`, called in workers."""
        options = self._options.changed(timeout, retries, progress)
        return self._map_and_wait(PacketKind.EACH, func, iterable, chunksize, options)

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
        """Return `[func(*item) for item in iterable]`, called in workers."""
        options = self._options.changed(timeout, retries, progress)
        return self._map_and_wait(PacketKind.STAR, func, iterable, chunksize, options)

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
        """Start a `map`; return its result object, whose `get()` returns the list."""
        options = self._options.changed(timeout, retries)
        item_list = _make_item_list(self, iterable, chunksize, callback, error_callback)
        return self._submit_map(PacketKind.EACH, func, item_list, options)

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
        """Start a `starmap`; return its result object, whose `get()` returns the list."""
        options = self._options.changed(timeout, retries)
        item_list = _make_item_list(self, iterable, chunksize, callback, error_callback)
        return self._submit_map(PacketKind.STAR, func, item_list, options)

    def _map_and_wait(
        self,
        kind: PacketKind,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        options: Options,
    ) -> list[Any]:
        item_list = _make_item_list(self, iterable, chunksize)
        with Bar(name_of(func), len(item_list.items), shown=options.progress) as bar:
            results: list[Any] = self._submit_map(
                kind, func, item_list._replace(bar=bar), options
            ).get()
            return results

    def _submit_map(
        self, kind: PacketKind, func: Callable[..., Any], item_list: _ItemList, options: Options
    ) -> _ListResult:
        name = f"{'map' if kind is PacketKind.EACH else 'starmap'}({name_of(func)})"
        items, chunksize = item_list.items, item_list.chunksize
        result: Any = None

        def make() -> tuple[Call, list[Task]]:
            nonlocal result
            result = _ListResult(self, item_list)
            call = Call(result, func, kind, name, options)
            # the check takes as long as packing a few chunks, which are all sent at once anyway
            call.has_frozen_items = len(items) > _FEW_CHUNKS * chunksize and are_frozen(items)
            chunks = [
                items[first : first + chunksize] for first in range(0, len(items), chunksize or 1)
            ]
            return call, [
                Task(call, index, index * chunksize, chunk, len(chunk))
                for index, chunk in enumerate(chunks)
            ]

        self._engine.begin(make)
        return result  # type: ignore[no-any-return]

    # -- imap

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
        """Return an iterator over `func(item)`, in order.

        At most `ahead` items are taken from `iterable` ahead of the consumed results, so it may be
        infinite.
        """
        options = self._options.changed(timeout, retries, progress)
        return self._submit_lazy(func, iterable, chunksize, ahead, options, ordered=True)

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
        """Return an iterator over `func(item)`, in the order of completion."""
        options = self._options.changed(timeout, retries, progress)
        return self._submit_lazy(func, iterable, chunksize, ahead, options, ordered=False)

    def _submit_lazy(
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
        prefetcher = Prefetcher(
            self._engine,
            lambda prefetcher: Call(
                prefetcher,
                func,
                PacketKind.EACH,
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
        return LazyResults(prefetcher, self._engine, self)

    def _fill(self, func: Callable[[Any], Any], row_chunks: Sequence[Any]) -> LazyResults:
        """Run `imap_unordered` over chunks of rows, with the function packed once, as it is now."""
        return self._submit_lazy(
            func, row_chunks, 1, None, self._options, ordered=False, function_once=True
        )

    # -- shutdown

    def close(self) -> None:
        """Accept no more tasks; workers exit when all tasks are done."""
        if self._state == multiprocessing_pool.RUN:
            self._state = multiprocessing_pool.CLOSE
            self._engine.close()

    def terminate(self) -> None:
        """Terminate all workers; results that are not complete raise TaskLost."""
        with deferred_signals():
            self._state = multiprocessing_pool.TERMINATE
            self._terminate()
            self._engine.end_soon()
        self._engine.terminate()

    def join(self) -> None:
        """Wait until all workers have exited, after `close` or `terminate`."""
        if self._state == multiprocessing_pool.RUN:
            raise ValueError("Pool is still running")
        self._engine.join()


class _Result(multiprocessing_pool.ApplyResult):  # type: ignore[type-arg]
    """The result of `apply_async`, which an interrupt of a waiting thread leaves intact."""

    def __init__(self, pool: Pool, callback: Any, error_callback: Any) -> None:
        super().__init__(pool, callback, error_callback)
        self._event: Any = OnceEvent()


class _ItemList(NamedTuple):
    """The items of a map, with its chunk size, callbacks and progress bar."""

    items: list[Any]
    chunksize: int
    callback: Callable[[Any], None] | None
    error_callback: Callable[[Any], None] | None
    bar: Bar | None = None


class _ListResult(multiprocessing_pool.MapResult):  # type: ignore[type-arg]
    """The result of a map, filled chunk by chunk."""

    def __init__(self, pool: Pool, item_list: _ItemList) -> None:
        length = len(item_list.items)
        super().__init__(
            pool,
            item_list.chunksize,
            length,
            item_list.callback,
            error_callback=item_list.error_callback,
        )
        self._event: Any = OnceEvent()
        if not length:
            self._event.set()
        self._items_per_chunk = item_list.chunksize
        self._length = length
        self._bar = item_list.bar

    def _set(self, i: int, success_result: tuple[bool, Any]) -> None:
        if self._bar is not None and not isinstance(success_result[1], TaskLost):
            self._bar.advance(min(self._items_per_chunk, self._length - i * self._items_per_chunk))
        super()._set(i, success_result)  # type: ignore[misc]


def _make_item_list(
    pool: Pool,
    iterable: Iterable[Any],
    chunksize: int | None,
    callback: Callable[[Any], Any] | None = None,
    error_callback: Callable[[BaseException], Any] | None = None,
) -> _ItemList:
    pool._check_running()
    items = list(iterable)
    if chunksize is None:
        chunksize = -(-len(items) // (4 * pool._processes))
    elif chunksize < 1:
        raise ValueError(f"Chunksize must be 1+, not {chunksize}")
    if not items:
        chunksize = 0
    return _ItemList(items, chunksize, guarded(callback), guarded(error_callback))


def _default_num_workers() -> int:
    """Return the number of physical cores that this process may use."""
    try:
        return read_machine(detail=False).budget.physical_cores
    except SourceError:
        for fd in pipe():  # raises a clearer error if no descriptors are left
            os.close(fd)
        raise


def _allowed_cpus() -> tuple[int, ...]:
    """Return this thread's CPU affinity, which may differ from the fork server's."""
    return tuple(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
