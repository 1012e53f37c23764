"""Compile graphs in a thread, while the script goes on."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import unwrap
from types import FunctionType
from typing import TYPE_CHECKING

import torch
from torch.fx import _symbolic_trace

from cputrain.runtime.patching import Patch
from cputrain.step.compiled_step import compile_graph, find_cpp_compiler, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from torch import Tensor
    from torch.fx import GraphModule

    from cputrain.step.compiled_step import Compiled

MAX_STOP_SECONDS = 10.0
"""How long a script that ends may wait for the thread."""


class _CompileQueue:
    """Graphs that wait to be compiled, and the thread that compiles them while there are any.

    A process that has no other thread may be forked.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Compiled], GraphModule, list[Tensor]]] = deque()
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()
        """Held while either is changed."""
        self.tracer = threading.Lock()
        """Held by the thread that traces."""
        self.is_stopping = False

    def add(self, future: Future[Compiled], graph: GraphModule, tensors: list[Tensor]) -> None:
        """Have a graph compiled."""
        with self.lock:
            self.waiting.append((future, graph, tensors))
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="cputrain-step", daemon=True)
                self.thread.start()

    def _work(self) -> None:
        while True:
            with self.lock:
                if not self.waiting:
                    self.thread = None
                    return
                future, graph, tensors = self.waiting.popleft()
            with self.tracer, _beside_script():
                if self.is_stopping:  # `stop` may not have seen that this thread traces
                    return
                try:
                    future.set_result(compile_graph(graph, tensors))
                except BaseException as error:
                    future.set_exception(error)

    def stop(self) -> None:
        """Have the thread end what it compiles, as a script that is through waits for nothing.

        Python ends a thread that runs on by unwinding its stack, which C++ code takes for an error:
        it would end the process by SIGABRT.
        """
        self.is_stopping = True
        end = time.monotonic() + MAX_STOP_SECONDS
        raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
        show = sys.unraisablehook
        # what is raised within a weak reference's callback is raised again
        sys.unraisablehook = lambda seen: None if seen.exc_type is SystemExit else show(seen)
        while (thread := self.thread) and self.tracer.locked() and time.monotonic() < end:
            raise_in_thread(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            time.sleep(0.01)
        sys.unraisablehook = show


_queue = _CompileQueue()
os.register_at_fork(after_in_child=_queue.__init__)  # type: ignore[misc]
atexit.register(_queue.stop)


@contextmanager
def only_tracer() -> Iterator[bool]:
    """Have this thread alone trace; tell whether it may.

    Tracers of torch.fx, which compiling uses too, have variables for all threads in common.
    """
    lock = _queue.tracer
    is_only = lock.acquire(blocking=False)
    try:
        yield is_only
    finally:
        if is_only:
            lock.release()


def compile_or_replay(
    graph: GraphModule, tensors: Sequence[Tensor], *, use_compiler: bool = True
) -> Future[Compiled]:
    """Compile a graph in the background; where there is no C++ compiler, replay it.

    Args:
        graph: The graph.
        tensors: Tensors like its arguments.
        use_compiler: Whether to look for a compiler.
    """
    if use_compiler and find_cpp_compiler() is not None:
        return compile_in_background(graph, tensors)
    future: Future[Compiled] = Future()
    future.set_result(replay(graph))
    return future


def compile_in_background(graph: GraphModule, tensors: Sequence[Tensor]) -> Future[Compiled]:
    """Compile a graph in C++; a script does not wait for it.

    Args:
        graph: The graph.
        tensors: Tensors like its arguments.
    """
    future: Future[Compiled] = Future()
    # those of the script have gradients, which it may free while they are looked at
    detached = [tensor.detach() for tensor in tensors]
    _queue.add(future, graph, detached)
    return future


def wait_for(future: Future[Compiled]) -> None:
    """Wait until a graph is compiled; not in a forked child, where no thread compiles it."""
    while _queue.thread is not None and not future.done():
        with suppress(TimeoutError):
            future.exception(0.1)


@contextmanager
def _beside_script() -> Iterator[None]:
    """Keep torch, while it compiles, from changing what the script uses meanwhile.

    Inductor sets torch's generator to what it was when compiling began; the script has drawn from
    it since. A tracer of torch.fx patches the calls of all modules, also those of the script, and
    says in variables of its module that it traces; models that the script has had compiled refuse
    to be called then.
    """
    thread, original = threading.get_ident(), torch.random.set_rng_state

    @wraps(original)
    def set_rng_state(new_state: Tensor) -> None:
        if threading.get_ident() != thread:
            original(new_state)

    patcher: Any = _symbolic_trace._Patcher
    patch_method = patcher.patch_method

    @wraps(patch_method)
    def patch_other_method(self: Any, cls: type, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != thread or cls is not torch.nn.Module:
            patch_method(self, cls, *args, **kwargs)

    tracer: Any = _symbolic_trace.Tracer
    trace, trace_apart = tracer.trace, _with_own_variables(tracer.trace)

    @wraps(trace)
    def trace_in_thread(*args: Any, **kwargs: Any) -> Any:
        is_here = threading.get_ident() == thread
        return (trace_apart if is_here else trace)(*args, **kwargs)

    patches = [
        Patch(torch.random, "set_rng_state", set_rng_state),
        Patch(patcher, "patch_method", patch_other_method),
        Patch(tracer, "trace", trace_in_thread),
    ]
    try:
        yield
    finally:
        for patch in patches:
            patch.undo()


def _with_own_variables(trace: Any) -> Callable[..., Any]:
    """Return a tracer's function with its own copy of the variables of its module."""
    variables = dict(vars(_symbolic_trace))
    variables["_new_patcher"] = contextmanager(_copied(_symbolic_trace._new_patcher, variables))
    return _copied(trace, variables)


def _copied(decorated: Any, variables: dict[str, Any]) -> Callable[..., Any]:
    function = unwrap(decorated)
    return FunctionType(
        function.__code__, variables, function.__name__, function.__defaults__, function.__closure__
    )
