"""How a pool's workers are started: by a fork where nothing else runs, else by a server."""

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

from cputrain.errors import UsageError
from cputrain.plan.start_method import for_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAUSE_SOFT = 1

_PRELOADED = "cputrain.pool.preloaded"

_OURS = "cputrain pool"
"""How names of threads begin that may run while a process is forked: they touch what is theirs."""


def context_for(asked: Any) -> Any:
    """The multiprocessing context that was asked for, by itself or by name, or the best one."""
    if hasattr(asked, "get_start_method"):
        return asked
    if asked is None:
        asked, _ = for_pools(sys.platform, others_run=others_run())
    if asked not in multiprocessing.get_all_start_methods():
        raise UsageError(
            "context",
            f"must be a context or one of {', '.join(multiprocessing.get_all_start_methods())}",
            found=repr(asked),
            do="Leave it out to have the best one chosen.",
        )
    return multiprocessing.get_context(asked)


def others_run() -> str:
    """What else runs in this process, so that a fork would not be a whole one; empty if nothing."""
    # multiprocessing's server of descriptors waits in accept(), and is made anew after a fork
    harmless = (threading.current_thread(), resource_sharer._resource_sharer._thread)  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread not in harmless and not thread.name.startswith(_OURS):
            return f"the thread {thread.name!r} runs"
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_initialized():
            return f"{kind} has been initialised"
    return ""


@contextmanager
def starting(method: str, context: Any) -> Iterator[None]:
    """While processes are started."""
    if method != "fork":
        resource_tracker.ensure_running()  # it would unblock what is blocked below
    if method == "forkserver":
        _prepare_server(context)
    else:
        _put_openmp_away()
    # Ctrl-C is for the pool to see, also while a worker starts; it inherits the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # from Python 3.12 on; what it warns of has been seen to
            warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _prepare_server(context: Any) -> None:
    """Have the server import torch once, for all workers.

    Ctrl-C is blocked until it has: the server would break off with a traceback of its own.
    """
    server = forkserver._forkserver
    preload = [*server._preload_modules]  # type: ignore[attr-defined]
    if _PRELOADED not in preload:
        context.set_forkserver_preload([*preload, _PRELOADED])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _put_openmp_away() -> None:
    """End the idle threads of OpenMP's team; the next parallel region starts them again.

    A forked child has none of them but believes that it has, and waits for them for ever
    (pytorch#17199). They belong to the thread that began the parallel regions, so this is called
    where the fork is. Those of LLVM and Intel see to it themselves.
    """
    for path in _mapped("libgomp"):
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_PAUSE_SOFT)


def _mapped(name: str) -> set[str]:
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].rstrip() for line in maps if name in line}
    except OSError:  # no /proc, so no libgomp that this system's Python would have loaded
        return set()
    return {path for path in paths if name in os.path.basename(path) and os.path.exists(path)}
