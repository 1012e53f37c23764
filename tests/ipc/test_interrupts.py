"""No signal is lost that arrives while something is finished."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from cputrain.ipc import interrupts
from cputrain.ipc.interrupts import deferred_signals, finalizer, redeliver_interrupts


@pytest.fixture(autouse=True)
def _interrupts_raise() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    yield
    signal.signal(signal.SIGINT, before[0])
    sys.unraisablehook = before[1]


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_is_delivered_after_the_statement() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferred_signals(lambda: steps.append("at once")):
            _press()
            steps.append("finished")
        steps.append("after")
    assert steps == ["at once", "finished"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outermost_statement_delivers_a_signal_once() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferred_signals():
            with deferred_signals():
                _press()
                steps.append("inner")
            _press()
            steps.append("outer")
        steps.append("after")
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_set_in_the_block_stays_and_is_called() -> None:
    heard: list[int] = []
    with deferred_signals():
        _press()
        signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
        handler = signal.getsignal(signal.SIGINT)
    assert heard == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler


def _raise_timeout(*_: object) -> None:
    raise TimeoutError


def _arriving(*numbers: int) -> None:
    try:
        with deferred_signals():
            for number in numbers:
                os.kill(os.getpid(), number)
    finally:
        time.sleep(0.001)  # Python looks for signals after a call


def test_every_signal_is_delivered_where_handlers_raise() -> None:
    heard: list[int] = []
    before = [
        signal.signal(signal.SIGALRM, _raise_timeout),
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number)),
    ]
    try:
        with pytest.raises((KeyboardInterrupt, TimeoutError)) as raised:
            _arriving(signal.SIGALRM, signal.SIGINT, signal.SIGTERM)
        kinds = {type(raised.value), type(raised.value.__context__)}
        assert kinds == {KeyboardInterrupt, TimeoutError}
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGALRM) is _raise_timeout
    finally:
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("statement", ["__enter__", "restore_handlers"])
def test_a_signal_while_handlers_are_exchanged_leaves_the_scripts(
    monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """One handler is exchanged, the other not yet: it raises."""
    set_handler = interrupts._signal.signal
    pressed: list[int] = []

    def press_between(number: int, handler: Any) -> Any:
        previous = set_handler(number, handler)
        is_ours = getattr(handler, "__func__", None) is deferred_signals._record
        if is_ours == (statement == "__enter__") and not pressed:
            pressed.append(number)
            signal.raise_signal(signal.SIGALRM if is_ours else number)
        return previous

    before = signal.signal(signal.SIGALRM, _raise_timeout)
    try:
        monkeypatch.setattr(interrupts._signal, "signal", press_between)
        with pytest.raises((KeyboardInterrupt, TimeoutError)), deferred_signals():
            pass
        assert pressed
        assert signal.getsignal(signal.SIGALRM) is _raise_timeout
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert interrupts._active_blocks == []
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGALRM, before)


def test_what_the_script_handles_or_ignores_is_left_to_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGTERM, ignored)
    assert heard == [signal.SIGUSR1]


def test_nothing_is_deferred_in_another_thread() -> None:
    seen: list[Any] = []

    def work() -> None:
        with deferred_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_forked_process_has_the_handlers_of_the_script_and_no_signals_of_its_parent() -> None:
    def restored() -> bool:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler

    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        deferred_signals() as outer,
        deferred_signals() as inner,
    ):
        _press()
        child = os.fork()
        if child == 0:
            os._exit(int(not restored() or bool(outer.pending) or bool(inner.pending)))
        assert os.waitpid(child, 0)[1] == 0


class Finalized:
    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def _finish(self) -> None:
        self.steps.append("begun")
        _press()
        self.steps.append("finished")

    def _hurry(self) -> None:
        self.steps.append("interrupted")

    __del__ = finalizer(_finish, _hurry)


def test_an_interrupt_in_a_finalizer_is_raised_where_it_was_called() -> None:
    steps: list[str] = []

    def finalize() -> None:
        Finalized(steps)
        time.sleep(0.001)  # Python looks for signals after a call
        steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        finalize()
    assert steps == ["begun", "interrupted", "finished"]


class Plain:
    def __del__(self) -> None:
        _press()


def _dropped_by_a_finalizer() -> None:
    Plain()
    time.sleep(10)  # ends when the signal arrives


def _dropped_by_a_weak_reference() -> None:
    thing = threading.Event()
    reference = weakref.ref(thing, lambda _: _press())
    del thing
    time.sleep(10)
    assert reference() is None


@pytest.mark.parametrize("drop", [_dropped_by_a_finalizer, _dropped_by_a_weak_reference])
def test_an_interrupt_that_python_drops_is_delivered_again(
    drop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    redeliver_interrupts()
    with pytest.raises(KeyboardInterrupt):
        drop()
    assert capsys.readouterr().err == ""


def test_other_errors_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(interrupts, "_previous_hook", None)
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    redeliver_interrupts()
    redeliver_interrupts()  # once is enough

    class Fails:
        def __del__(self) -> None:
            raise ValueError("as ever")

    Fails()
    assert told[0].exc_type is ValueError
