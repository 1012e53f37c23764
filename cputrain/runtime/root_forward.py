"""Intercept root module calls: calls of a module that are not within another module's call.

Module.__call__ is patched on the class, so nothing is stored on a module: it is pickled, copied and
saved as the script made it. While a compiler or a tracer reads a model, calls are not intercepted.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import wraps

from cputrain.runtime.patching import (
    Patch,
    register_skipped_code,
    skip_frames,
    uncounted,
    without_ours,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    Interceptor = Callable[..., Any]
    """Takes the original call, the model and the call's arguments; returns the model's output."""


class _CallState(threading.local):
    """Thread-local flag: whether this thread is within the call of a module."""

    is_within = False


_call_state = _CallState()


def be_within() -> None:
    """Mark this thread as being within a model's call: none of its calls is a root call."""
    _call_state.is_within = True


@contextmanager
def within_call() -> Iterator[None]:
    """Have no call of this thread be a root call for the duration of the context."""
    was_within, _call_state.is_within = _call_state.is_within, True
    try:
        yield
    finally:
        _call_state.is_within = was_within


class RootForward:
    """The patched Module.__call__ and its chain of interceptors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._module_class: Any = torch.nn.Module
        self._original = call = self._module_class.__call__
        self._interceptors: list[Interceptor] = []
        self._chain: Interceptor = call
        self._compile_callbacks: list[Callable[[], None]] = []
        call_state = _call_state
        is_compiling = torch.compiler.is_compiling
        is_tracing = torch.jit.is_tracing

        @wraps(call)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling():  # Dynamo traces only this branch
                return call(self, *args, **kwargs)
            if call_state.is_within or is_tracing():
                try:
                    return call(self, *args, **kwargs)
                except BaseException as error:
                    error.__traceback__ = without_ours(error)
                    raise
            call_state.is_within = True
            try:
                return chained()(self, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise
            finally:
                call_state.is_within = False

        def chained() -> Interceptor:
            return self._chain

        self._replacement = __call__
        skip_frames(uncounted(__call__).__code__, uncounted(chained).__code__)
        self._module_class.__call__ = __call__
        self._compile = torch.compile
        compiles: Any = torch.compile, self.compile
        self._patches = [
            Patch(torch, "compile", self._with_callbacks(*compiles)),
            *(
                Patch(torch.jit, name, self._without_interception(getattr(torch.jit, name)))
                for name in ("trace", "trace_module")
            ),
        ]
        if "torch.export" in sys.modules:
            original = torch.export.export
            patch = Patch(torch.export, "export", self._with_callbacks(original, original))
            self._patches.append(patch)

    def add(self, interceptor: Interceptor, *, first: bool = False) -> None:
        """Add an interceptor of root calls, inside those added earlier; with `first`, around all.

        Calls that an interceptor makes of its own, as of copies of a model, are seen inside it.
        """
        self._interceptors.insert(0 if first else len(self._interceptors), interceptor)
        function: Any = getattr(interceptor, "__func__", interceptor)
        skip_frames(uncounted(function).__code__)
        self._rebuild_chain()
        skip_frames(self._chain.__code__)

    def remove(self, interceptor: Interceptor) -> None:
        """Remove an interceptor; restore torch's functions after the last one."""
        self._interceptors.remove(interceptor)
        self._rebuild_chain()
        if self._interceptors:
            return
        if self._module_class.__call__ is self._replacement:
            self._module_class.__call__ = self._original
        for patch in self._patches:
            patch.undo()

    def on_compile(self, callback: Callable[[], None]) -> None:
        """Register a callback to run once, before the script first compiles or exports a model."""
        self._compile_callbacks.append(callback)

    def compile(self, model: Any = None, **kwargs: Any) -> Any:
        """Call torch.compile without running the callbacks for compilation by the script.

        torch.compile wraps Module.__call__, which must be torch's: otherwise it would compile the
        interceptors with the module's hooks inside them, and share one cache among all modules.
        """
        import torch._dynamo  # noqa: F401  (when loaded, it reads Module.__call__: the patched one)

        register_skipped_code()
        if getattr(model, "__func__", None) is self._replacement:
            model = self._original.__get__(model.__self__)
        with self.original_call():
            return self._compile(model, **kwargs)

    @contextmanager
    def original_call(self) -> Iterator[None]:
        """Restore torch's own Module.__call__ for the duration of the context."""
        current = self._module_class.__call__
        self._module_class.__call__ = self._original
        try:
            yield
        finally:
            self._module_class.__call__ = current

    def _with_callbacks(self, original: Any, function: Any) -> Any:
        @wraps(original)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            callbacks, self._compile_callbacks = self._compile_callbacks, []
            for callback in callbacks:
                callback()
            return function(*args, **kwargs)

        return compiled

    def _without_interception(self, original: Any) -> Any:
        """Wrap a tracer so that calls within it are not intercepted, nor those of its check."""

        @wraps(original)
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                with within_call():
                    return original(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        return traced

    def _rebuild_chain(self) -> None:
        self._chain = self._original
        for interceptor in reversed(self._interceptors):
            self._chain = _bind(interceptor, self._chain)


def _bind(interceptor: Interceptor, call: Interceptor) -> Interceptor:
    def linked(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return interceptor(call, model, *args, **kwargs)

    function: Interceptor = uncounted(linked)
    return function


_instances: dict[ModuleType, RootForward] = {}


def root_forward_of(torch: ModuleType) -> RootForward:
    """Return the RootForward of this torch; patch Module.__call__ if it is not patched."""
    instance = _instances.get(torch)
    if instance is None or instance._module_class.__call__ is not instance._replacement:
        instance = _instances[torch] = RootForward(torch)
    return instance


def is_watched(torch: ModuleType) -> bool:
    """Return whether every operator is observed: by torch.func or by a TorchDispatchMode."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
