"""How workers are started: by fork if no other thread runs, else by a fork server."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from multiprocessing import forkserver, resource_sharer, resource_tracker
from typing import TYPE_CHECKING, Any

from cputrain.errors import argument_error
from cputrain.settings.start_method import for_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

_OMP_PAUSE_SOFT = 1

_PRELOADED_MODULE = "cputrain.pool.preloaded"

_THREAD_PREFIX = "cputrain pool"
"""Name prefix of threads that may run during a fork, as they share no locks with the child."""


def context_for(context: Any) -> Any:
    """Return the multiprocessing context given, the one of that name, or the best for None."""
    if hasattr(context, "get_start_method"):
        return context
    if context is None:
        context, _ = for_pools(sys.platform, others_run=others_run())
    if not isinstance(context, str) or context not in multiprocessing.get_all_start_methods():
        raise argument_error(context, str)(
            "context",
            f"must be a context or one of {', '.join(multiprocessing.get_all_start_methods())}",
            found=repr(context),
            do="Leave it out to have the best one chosen.",
        )
    return multiprocessing.get_context(context)


def others_run() -> str:
    """Return why a fork is unsafe, a thread or an initialized device; "" if it is safe."""
    # multiprocessing's resource sharer waits in accept(), and is recreated after a fork
    fork_safe = (threading.current_thread(), resource_sharer._resource_sharer._thread)  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread not in fork_safe and not thread.name.startswith(_THREAD_PREFIX):
            return f"the thread {thread.name!r} runs"
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_initialized():
            return f"{kind} has been initialised"
    return ""


@contextmanager
def starting(method: str, context: Any) -> Iterator[None]:
    """Prepare this process for starting workers, with SIGINT blocked within the block."""
    if method != "fork":
        resource_tracker.ensure_running()  # it would unblock what is blocked below
    if method == "forkserver":
        _prepare_server(context)
    else:
        _pause_openmp()
    # a starting worker inherits the mask, so that only the pool's process handles Ctrl-C
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # from Python 3.12 on; fork safety has been checked by `others_run`
            warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _prepare_server(context: Any) -> None:
    """Start the fork server, which imports torch once for all workers.

    SIGINT is blocked in the server until it has: Ctrl-C would end it with a traceback.
    """
    server = forkserver._forkserver
    preload = [*server._preload_modules]  # type: ignore[attr-defined]
    if _PRELOADED_MODULE not in preload:
        context.set_forkserver_preload([*preload, _PRELOADED_MODULE])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pause_openmp() -> None:
    """End the idle threads of libgomp's thread team; the next parallel region restarts them.

    A forked child has none of these threads, but its libgomp waits for them forever
    (pytorch#17199). A team belongs to the thread that began the parallel regions, so this is called
    by the thread that forks. LLVM's and Intel's OpenMP handle forks themselves.
    """
    for path in _mapped_libraries("libgomp"):
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_OMP_PAUSE_SOFT)


def _mapped_libraries(name: str) -> set[str]:
    """Return the paths of mapped libraries whose file name contains `name`."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].rstrip() for line in maps if name in line}
    except OSError:  # no /proc, so no libgomp that this system's Python would have loaded
        return set()
    return {path for path in paths if name in os.path.basename(path) and os.path.exists(path)}
