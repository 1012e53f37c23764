"""Signals that arrive while something must be finished: held back, and delivered afterwards.

Python runs the handlers of signals between any two instructions of the main thread. An exception
that one of them raises, as Ctrl-C does, is printed and dropped where nobody can catch it: in
`__del__`, in callbacks of weak references, in functions that are called around a fork. The script
then runs on as if nothing had been typed.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from contextlib import contextmanager
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_DEFERRED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""Signals whose handlers raise exceptions in scripts that stop, save themselves or time out."""


class deferred_signals:  # noqa: N801  (used as a statement)
    """Hold back the script's handlers of signals; call `on_interrupt` at once on Ctrl-C.

    Outside of the main thread no handler runs, and nothing is done. What has arrived is delivered
    by `deliver()` behind the statement.
    """

    def __init__(self, on_interrupt: Callable[[], None] | None = None) -> None:
        self._on_interrupt = on_interrupt
        self._handlers: dict[int, Any] = {}
        self.arrived: list[int] = []
        """Numbers of signals, each once."""

    def __enter__(self) -> deferred_signals:
        if threading.current_thread() is threading.main_thread():
            _active.append(self)
            for number in _DEFERRED:
                handler = signal.getsignal(number)
                if callable(handler):  # the system's own actions are numbers
                    self._handlers[number] = handler
                    signal.signal(number, self._arrive)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Put the script's handlers back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self in _active:
            _active.remove(self)

    def _arrive(self, number: int, _: FrameType | None) -> None:
        if number not in self.arrived:
            self.arrived.append(number)
        if self._on_interrupt and self._handlers.get(number) is signal.default_int_handler:
            self._on_interrupt()

    def deliver(self) -> None:
        """Call the handlers of what has arrived; raises what they raise."""
        while self.arrived:
            signal.raise_signal(self.arrived.pop(0))


_active: list[deferred_signals] = []


def _restore_in_child() -> None:
    """Give a forked process the script's handlers; the signals are those of its parent."""
    for deferred in list(_active):
        deferred.restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


def finalizer(work: Callable[[Any], None], on_interrupt: Callable[[Any], None]) -> Any:
    """Return a `__del__` that does `work` whole, and loses no signal that arrives meanwhile."""

    def __del__(self: Any) -> None:  # noqa: N807
        with deferred_signals(partial(on_interrupt, self)) as signals:
            work(self)
        # Python looks for signals after calls and before jumps, and would drop what a handler
        # raises in here. This list is no call, and nothing follows: handlers run in the caller
        [*map(_trip, signals.arrived)]

    _finalizers.add(__del__.__code__)
    return __del__


_trip: Callable[..., None] = _thread.interrupt_main
"""Has Python find that a signal has arrived, the next time it looks; a function in C."""

_finalizers: set[CodeType] = set()


def keep_interrupts() -> None:
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
    traceback = unraisable.exc_traceback
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in _finalizers:  # interrupted before it began, or when it was over
            with deferred_signals():
                frame.f_locals["work"](frame.f_locals["self"])
        traceback = traceback.tb_next
    try:
        # a signal proper, which ends a call of the system in which this thread waits by then; from
        # another thread, as it would be raised here, and dropped again
        _thread.start_new_thread(signal.pthread_kill, (_thread.get_ident(), signal.SIGINT))
    except RuntimeError:  # the system has no more threads for us
        [*map(_trip, (signal.SIGINT,))]  # see finalizer()


@contextmanager
def interrupt_blocked() -> Iterator[bool]:
    """Block Ctrl-C in this thread, and so in processes that it starts; whether it was not so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield signal.SIGINT not in before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
