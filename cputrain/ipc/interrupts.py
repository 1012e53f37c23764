"""Deferred signals: handlers that would interrupt a critical section run at its end.

Python runs signal handlers between any two bytecode instructions of the main thread. An exception
that a handler raises, such as KeyboardInterrupt, is only printed if it cannot propagate: in
`__del__`, in callbacks of weak references and in `os.register_at_fork` functions. The script would
then continue as if Ctrl-C had not been pressed.
"""

from __future__ import annotations

import _signal  # signal.signal converts to enums and back, which dominates the cost of a block
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
"""Signals that scripts use to stop, to save a checkpoint or to time out."""


class deferred_signals:  # noqa: N801  (used as a statement)
    """Context manager that defers the script's signal handlers to the end of the block.

    Outside the main thread, where Python runs no handlers, it does nothing. Blocking the signals
    would not help: another thread receives them then, and Python still calls the handlers in the
    main thread. Blocks can be nested; the script's handlers run at the end of the outermost one.

    Args:
        on_interrupt: Called at once on Ctrl-C, if its handler is the one that raises
            KeyboardInterrupt.
    """

    __slots__ = ("_handlers", "_on_interrupt", "pending")

    def __init__(self, on_interrupt: Callable[[], None] | None = None) -> None:
        self._on_interrupt = on_interrupt
        self._handlers: dict[int, Any] = {}
        self.pending: list[int] = []
        """Numbers of the signals received in the block, without duplicates."""

    def __enter__(self) -> deferred_signals:
        if _thread.get_ident() != threading.main_thread().ident:
            return self
        try:
            _active_blocks.append(self)
            for number in _DEFERRED:
                handler = _signal.getsignal(number)
                if callable(handler):  # SIG_DFL and SIG_IGN are numbers
                    self._handlers[number] = handler
                    _signal.signal(number, self._record)
        except BaseException:  # raised by a script's handler that is not replaced yet
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.restore_handlers()
        finally:
            # Python runs pending handlers after a call, and keeps the others pending if one raises:
            # so all signals are set pending in one call
            if self.pending:
                deque(map(_set_pending, self.pending), maxlen=0)

    def restore_handlers(self) -> None:
        """Restore the script's handlers, except for signals whose handler it has changed since."""
        try:
            for number, handler in self._handlers.items():
                if _signal.getsignal(number) == self._record:
                    _signal.signal(number, handler)
            if self in _active_blocks:
                _active_blocks.remove(self)
        except BaseException:  # raised by a handler that was just restored
            self.restore_handlers()
            raise

    def _record(self, number: int, _: FrameType | None) -> None:
        """Signal handler in a block: note the signal, and call `on_interrupt` on Ctrl-C."""
        if number not in self.pending:
            self.pending.append(number)
        if self._on_interrupt and self._handlers.get(number) is signal.default_int_handler:
            self._on_interrupt()


_active_blocks: list[deferred_signals] = []
"""Blocks of the main thread, the outermost first."""


def _restore_in_child() -> None:
    """Restore the script's handlers in a forked process; pending signals are the parent's."""
    for deferred in reversed(_active_blocks.copy()):  # the innermost block first
        deferred.pending.clear()
        deferred.restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


def finalizer(work: Callable[[Any], None], on_interrupt: Callable[[Any], None]) -> Any:
    """Return a `__del__` that runs `work(self)` without interruption, and loses no signal.

    While the interpreter is finalizing, the `__del__` does nothing.

    Args:
        on_interrupt: Called with `self` at once on Ctrl-C.
    """
    is_finalizing = sys.is_finalizing  # this module's globals may be cleared by then

    def __del__(self: Any) -> None:  # noqa: N807
        if is_finalizing():
            return
        # Python checks for pending signals after calls and before jumps, and would drop an
        # exception raised in here. Unpacking a map into a list is neither, and nothing follows it:
        # the handlers run in the caller
        [*map(_set_pending, _run_deferred(work, self, partial(on_interrupt, self)))]

    _finalizers.add(__del__.__code__)
    return __del__


def _run_deferred(
    work: Callable[[Any], Any], owner: Any, on_interrupt: Callable[[], None] | None = None
) -> list[int]:
    """Call `work(owner)` with signals deferred; return the numbers of those still pending."""
    signals = deferred_signals(on_interrupt)
    try:
        signals.__enter__()
        work(owner)
    finally:
        signals.restore_handlers()
    return signals.pending


_set_pending: Callable[..., None] = _thread.interrupt_main
"""Sets a signal pending, so that Python's next check calls its handler; a C function."""

_finalizers: set[CodeType] = set()
"""Code of the functions that `finalizer` has returned."""


def redeliver_interrupts() -> None:
    """Install an unraisable hook that delivers Ctrl-C again after Python has dropped it.

    Python drops a KeyboardInterrupt raised in a finalizer, of the standard library's as well, just
    before or after signals are deferred. If a script has replaced the hook since an earlier call,
    its hook stays.
    """
    global _previous_hook
    if _previous_hook is None or sys.unraisablehook is _previous_hook:
        _previous_hook, sys.unraisablehook = sys.unraisablehook, _redeliver


_previous_hook: Callable[[Any], Any] | None = None
"""Hook that `redeliver_interrupts` has replaced."""


def _redeliver(unraisable: Any) -> None:
    """Send SIGINT again for a dropped KeyboardInterrupt; pass on other errors."""
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
        if frame.f_code in _finalizers:  # interrupted before its work began, or after it
            numbers.update(_run_deferred(frame.f_locals["work"], frame.f_locals["self"]))
        traceback = traceback.tb_next
    for number in numbers:
        is_sent = False
        while not is_sent:
            try:
                # a real signal, which interrupts a system call that this thread may be in by then;
                # sent from another thread, as the handler would otherwise run here and be dropped
                _thread.start_new_thread(signal.pthread_kill, (_thread.get_ident(), number))
                is_sent = True
            except KeyboardInterrupt:  # it came before this was over, as this thread had to wait
                continue
            except RuntimeError:  # the system refused another thread
                [*map(_set_pending, (number,))]  # see finalizer()
                is_sent = True


@contextmanager
def interrupt_blocked() -> Iterator[bool]:
    """Block SIGINT in this thread and in processes it starts; yield whether it was unblocked."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield signal.SIGINT not in previous_mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
