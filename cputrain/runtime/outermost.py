"""Hears of every call of a module that is not within the call of another: a whole model's.

Module.__call__ is exchanged on the class, so nothing is left on a module: it is pickled, copied and
saved as the script made it. While a compiler reads a model, its own calls are left alone.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Around = Callable[[Any, Callable[[], Any]], Any]
    """Given the model and the call: what the call returns."""


class _Within(threading.local):
    """Whether this thread is within the call of a module."""

    now = False


class Outermost:
    """The exchanged call, and who is around it."""

    def __init__(self, torch: ModuleType) -> None:
        self._kind: Any = torch.nn.Module
        self._own = own = self._kind.__call__
        self._arounds: list[Around] = []
        within = _Within()
        is_compiling = torch.compiler.is_compiling
        surround = self._surround

        def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807
            if is_compiling() or within.now:
                return own(self, *args, **options)
            within.now = True
            try:
                return surround(self, lambda: own(self, *args, **options))
            finally:
                within.now = False

        self._ours = __call__
        self._kind.__call__ = __call__

    def add(self, around: Around) -> None:
        """From now on this is around each call; what is added later is within."""
        self._arounds.append(around)

    def remove(self, around: Around) -> None:
        """It is no longer; with the last one, the class has its own call back."""
        self._arounds.remove(around)
        if not self._arounds and self._kind.__call__ is self._ours:
            self._kind.__call__ = self._own

    def _surround(self, model: Any, call: Callable[[], Any]) -> Any:
        for around in reversed(self._arounds):
            call = _within(around, model, call)
        return call()


def _within(around: Around, model: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: around(model, call)


_found: dict[ModuleType, Outermost] = {}


def outermost(torch: ModuleType) -> Outermost:
    """The one of this torch, in place."""
    found = _found.get(torch)
    if found is None or found._kind.__call__ is not found._ours:
        found = _found[torch] = Outermost(torch)
    return found
