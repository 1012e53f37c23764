"""Signals that arrive while something must be finished: deferred, and delivered afterwards.

Python runs the handlers of signals between any two instructions of the main thread. An exception
that one of them raises, as Ctrl-C does, is printed and dropped where nobody can catch it: in
`__del__`, in callbacks of weak references, in functions that are called around a fork. The script
then runs on as if nothing had been typed.
"""

from __future__ import annotations

import _signal  # signal.signal converts to enums and back, which takes longer than all the rest
import _thread
import os
import signal
import sys
import threading
from collections import deque
from contextlib import contextmanager
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_DEFERRED = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if hasattr(signal, name)
)
"""Signals whose handlers raise exceptions in scripts that stop, save themselves or time out."""


class deferred_signals:  # noqa: N801  (used as a statement)
    """Defer the script's signal handlers to the end of the block; call `on_interrupt` at once.

    A no-op outside of the main thread, where no handler runs. Blocking the signals would not do:
    another thread receives them then, and Python calls the handlers in the main thread all the
    same. Statements may be nested: the outermost one calls the script's handlers.

    Args:
        on_interrupt: Called on Ctrl-C, where that would raise KeyboardInterrupt.
    """

    __slots__ = ("_handlers", "_on_interrupt", "arrived")

    def __init__(self, on_interrupt: Callable[[], None] | None = None) -> None:
        self._on_interrupt = on_interrupt
        self._handlers: dict[int, Any] = {}
        self.arrived: list[int] = []
        """Numbers of signals, each once."""

    def __enter__(self) -> deferred_signals:
        if _thread.get_ident() != threading.main_thread().ident:
            return self
        try:
            _active.append(self)
            for number in _DEFERRED:
                handler = _signal.getsignal(number)
                if callable(handler):  # the system's own actions are numbers
                    self._handlers[number] = handler
                    _signal.signal(number, self._arrive)
        except BaseException:  # raised by a handler that was still the script's
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.restore_handlers()
        finally:
            # Python runs handlers when a call is over, and keeps those that are left when one
            # raises; so all signals are tripped in one call
            if self.arrived:
                deque(map(_trip, self.arrived), maxlen=0)

    def restore_handlers(self) -> None:
        """Put the script's handlers back, except where it has set others meanwhile."""
        try:
            for number, handler in self._handlers.items():
                if _signal.getsignal(number) == self._arrive:
                    _signal.signal(number, handler)
            if self in _active:
                _active.remove(self)
        except BaseException:  # raised by one that has just been put back
            self.restore_handlers()
            raise

    def _arrive(self, number: int, _: FrameType | None) -> None:
        if number not in self.arrived:
            self.arrived.append(number)
        if self._on_interrupt and self._handlers.get(number) is signal.default_int_handler:
            self._on_interrupt()


_active: list[deferred_signals] = []


def _restore_in_child() -> None:
    """Give a forked process the script's handlers; the signals are those of its parent."""
    for deferred in reversed(_active.copy()):  # the innermost statement first
        deferred.arrived.clear()
        deferred.restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


def finalizer(work: Callable[[Any], None], on_interrupt: Callable[[Any], None]) -> Any:
    """Return a `__del__` that does `work` whole, and loses no signal that arrives meanwhile.

    When modules are taken down, at the interpreter's very end, it does nothing.
    """
    is_finalizing = sys.is_finalizing  # the module's own names may be gone by then

    def __del__(self: Any) -> None:  # noqa: N807
        if is_finalizing():
            return
        # Python looks for signals after calls and before jumps, and would drop what a handler
        # raises in here. This list is no call, and nothing follows: handlers run in the caller
        [*map(_trip, _finish(work, self, partial(on_interrupt, self)))]

    _finalizers.add(__del__.__code__)
    return __del__


def _finish(
    work: Callable[[Any], Any], owner: Any, on_interrupt: Callable[[], None] | None = None
) -> list[int]:
    """Call `work(owner)`; return the signals that have arrived meanwhile and are not handled."""
    signals = deferred_signals(on_interrupt)
    try:
        signals.__enter__()
        work(owner)
    finally:
        signals.restore_handlers()
    return signals.arrived


_trip: Callable[..., None] = _thread.interrupt_main
"""Has Python find that a signal has arrived, the next time it looks; a function in C."""

_finalizers: set[CodeType] = set()


def redeliver_interrupts() -> None:
    """Have Ctrl-C delivered once more where Python drops it: before or after all else is deferred.

    That is so in finalizers of the standard library, too. A hook that a script has put there since
    stays: it may call this one.
    """
    global _previous_hook
    if _previous_hook is None or sys.unraisablehook is _previous_hook:
        _previous_hook, sys.unraisablehook = sys.unraisablehook, _deliver_again


_previous_hook: Callable[[Any], Any] | None = None


def _deliver_again(unraisable: Any) -> None:
    assert _previous_hook is not None
    if (
        not issubclass(unraisable.exc_type, KeyboardInterrupt)
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        or util.is_exiting()
    ):
        _previous_hook(unraisable)
        return
    numbers = {int(signal.SIGINT)}
    traceback = unraisable.exc_traceback
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in _finalizers:  # interrupted before it began, or when it was over
            numbers.update(_finish(frame.f_locals["work"], frame.f_locals["self"]))
        traceback = traceback.tb_next
    for number in numbers:
        try:
            # a signal proper, which ends a call of the system in which this thread waits by then;
            # from another thread, as it would be raised here, and dropped again
            _thread.start_new_thread(signal.pthread_kill, (_thread.get_ident(), number))
        except RuntimeError:  # the system has no more threads for us
            [*map(_trip, (number,))]  # see finalizer()


@contextmanager
def interrupt_blocked() -> Iterator[bool]:
    """Block Ctrl-C in this thread, and so in processes that it starts; whether it was not so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield signal.SIGINT not in before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
