"""Hears of every call of a module that is not within the call of another: a whole model's.

Module.__call__ is exchanged on the class, so nothing is left on a module: it is pickled, copied and
saved as the script made it. While a compiler or a tracer reads a model, its calls are left alone.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import wraps

from cputrain.runtime.patching import (
    Patch,
    have_them_passed,
    pass_by,
    uncounted,
    without_ours,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    Around = Callable[..., Any]
    """Given what makes the call, the model and the call's arguments: what the call returns."""


class _Within(threading.local):
    """Whether this thread is within the call of a module."""

    now = False


_within = _Within()


def be_within() -> None:
    """From now on no call that this thread makes is a whole model's: it works for one that is."""
    _within.now = True


class RootForward:
    """The exchanged call, and who is around it."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._kind: Any = torch.nn.Module
        self._own = call = self._kind.__call__
        self._arounds: list[Around] = []
        self._chain: Around = call
        self._tellings: list[Callable[[], None]] = []
        within = _within
        is_compiling = torch.compiler.is_compiling
        is_tracing = torch.jit.is_tracing

        @wraps(call)
        def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807
            if is_compiling():  # which reads no further
                return call(self, *args, **options)
            if within.now or is_tracing():
                try:
                    return call(self, *args, **options)
                except BaseException as error:
                    error.__traceback__ = without_ours(error)
                    raise
            within.now = True
            try:
                return chained()(self, *args, **options)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise
            finally:
                within.now = False

        def chained() -> Around:
            return self._chain

        self._ours = __call__
        pass_by(uncounted(__call__).__code__, uncounted(chained).__code__)
        self._kind.__call__ = __call__
        self._compile = torch.compile
        compiles: Any = torch.compile, self.compile
        self._exchanged = [
            Patch(torch, "compile", self._telling(*compiles)),
            *(
                Patch(torch.jit, name, self._alone_while(getattr(torch.jit, name)))
                for name in ("trace", "trace_module")
            ),
        ]
        if "torch.export" in sys.modules:
            own = torch.export.export
            exported = Patch(torch.export, "export", self._telling(own, own))
            self._exchanged.append(exported)

    def add(self, around: Around) -> None:
        """From now on this is around each call; what is added later is within."""
        self._arounds.append(around)
        function: Any = getattr(around, "__func__", around)
        pass_by(uncounted(function).__code__)
        self._link()
        pass_by(self._chain.__code__)

    def remove(self, around: Around) -> None:
        """It is no longer; with the last one, torch has its own back."""
        self._arounds.remove(around)
        self._link()
        if self._arounds:
            return
        if self._kind.__call__ is self._ours:
            self._kind.__call__ = self._own
        for one in self._exchanged:
            one.undo()

    def tell(self, telling: Callable[[], None]) -> None:
        """Call this once the script compiles something by itself."""
        self._tellings.append(telling)

    def compile(self, model: Any = None, **options: Any) -> Any:
        """torch.compile, and nobody is told.

        It wraps a module's call: that must be torch's, or what it compiles is ours around it, with
        the module's hooks inside, and one cache for all modules.
        """
        import torch._dynamo  # noqa: F401  (it looks once for what a module's call is: ours)

        have_them_passed()
        if getattr(model, "__func__", None) is self._ours:
            model = self._own.__get__(model.__self__)
        with self.away():
            return self._compile(model, **options)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Torch's own call is in its place meanwhile."""
        current = self._kind.__call__
        self._kind.__call__ = self._own
        try:
            yield
        finally:
            self._kind.__call__ = current

    def _telling(self, own: Any, instead: Any) -> Any:
        @wraps(own)
        def compiled(*args: Any, **options: Any) -> Any:
            tellings, self._tellings = self._tellings, []
            for telling in tellings:
                telling()
            return instead(*args, **options)

        return compiled

    def _alone_while(self, own: Any) -> Any:
        """Return a tracer during which calls are left alone: it compares what it made with some."""

        @wraps(own)
        def traced(*args: Any, **options: Any) -> Any:
            before, _within.now = _within.now, True
            try:
                return own(*args, **options)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise
            finally:
                _within.now = before

        return traced

    def _link(self) -> None:
        self._chain = self._own
        for around in reversed(self._arounds):
            self._chain = _linked(around, self._chain)


def _linked(around: Around, call: Around) -> Around:
    def linked(model: Any, /, *args: Any, **options: Any) -> Any:
        return around(call, model, *args, **options)

    outer: Around = uncounted(linked)
    return outer


_found: dict[ModuleType, RootForward] = {}


def outermost(torch: ModuleType) -> RootForward:
    """The one of this torch, in place."""
    found = _found.get(torch)
    if found is None or found._kind.__call__ is not found._ours:
        found = _found[torch] = RootForward(torch)
    return found


def is_watched(torch: ModuleType) -> bool:
    """Whether something looks at every operation: torch.func, or a mode that counts or fakes."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
