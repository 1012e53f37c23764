"""What runs in a worker process: take a task, say which, run it, send what came of it."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from functools import partial
from itertools import count
from multiprocessing import pool as multiprocessing_pool
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from cputrain.ipc import (
    PrivateReader,
    Writer,
    are_kept,
    exit_with_owner,
    forget_opened,
    one_thread,
    pack,
    room_for,
    spill,
    unpack,
)
from cputrain.ipc.serialization import is_atom
from cputrain.pool.packets import (
    APPLIED_AS,
    LONGEST,
    TICKET,
    TOKEN,
    Kind,
    Part,
    ResultPacket,
    Status,
    TaskPacket,
    pointed_to,
)
from cputrain.pool.seeds import seed_all
from cputrain.pool.tasks import is_stateless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cputrain.ipc import End, Lent, Memory, Sender
    from cputrain.pool.slots import Slot


class WorkerEnds(NamedTuple):
    """What a worker holds of its pool."""

    tasks: End
    """The pipe of tasks, which all workers read."""
    life: End
    """A pipe that ends when the pool's process does."""
    arguments: Memory
    """Where the pool writes arguments, for all workers."""
    results: Sender
    returned: End
    """Tells which blocks of its results the pool holds no more."""
    memory: Memory
    """Where this worker writes results."""
    slot: Slot

    def close(self) -> None:
        """In the pool's process, after the start: what only this worker needs."""
        self.results.close()
        self.returned.close()


class Setup(NamedTuple):
    """How a worker is set up."""

    cpus: tuple[int, ...]
    """Where it may run; empty if that is inherited, or the platform has no masks."""
    seed: int
    initializer: Callable[..., Any] | None
    initargs: Sequence[Any]
    packed: Part | None
    """Both, in the memory of arguments, where every worker reads them."""
    max_tasks: int | None
    """After how many it ends."""
    forked: bool


Outcome: TypeAlias = tuple[Status, bytes, "list[Lent]"]
"""Whether a task returned or raised; that, packed; its blocks."""


class Raised(NamedTuple):
    """An exception on its way."""

    kind: str
    says: str
    traceback: str
    pickled: bytes
    """Nothing if it cannot be pickled."""


def serve(ends: WorkerEnds, setup: Setup, close_others: Callable[[], None] | None) -> None:
    """Run tasks until there are no more."""
    if close_others is not None:
        close_others()
    if setup.forked:
        # what the script has left to the collector is not this process's to finalize or close, and
        # a collection would copy the pages of all that it looks at
        gc.freeze()
    leave_signals_to_the_pool(ends.life)
    ends.life.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while it started
    if setup.cpus:
        _run_on(setup.cpus)
    one_thread(forked=setup.forked)
    seed_all(setup.seed)
    worker = _Worker(ends)
    try:
        worker.set_up(setup)
    except BaseException as error:
        worker.send(0, Status.NOT_SET_UP, *worker.packed(_explained(error)))
        return
    worker.send(os.getpid(), Status.READY, b"", [])
    worker.work(setup.max_tasks)


_writers: list[Writer] = []
"""This process's, if it is a worker."""


def room(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor for a task's result, where the result will not have to be copied to."""
    return room_for(shape, dtype, _writers[0] if _writers else None)


class _Worker:
    def __init__(self, ends: WorkerEnds) -> None:
        self._tasks = ends.tasks.fileno()
        self._ends = ends
        self._slot = ends.slot
        self._writer = Writer(ends.memory, self._take_back)
        _writers[:] = [self._writer]
        self._reader = PrivateReader(ends.arguments)
        self._told: set[tuple[int, int]] = set()
        """Blocks of earlier tasks that the pool has been told are still held."""
        self._halves = b""
        self._begun = 0
        self._known: tuple[bytes, Any] = b"", None
        os.set_blocking(ends.returned.fileno(), False)

    def set_up(self, setup: Setup) -> None:
        """Call the initializer, if there is one."""
        initializer, initargs = setup.initializer, setup.initargs
        if setup.packed is not None:
            lent = setup.packed.lent
            initializer, initargs = _unpacked(setup.packed, self._reader.leases(lent))
            self._told.update(one.token for one in lent)
        if initializer is not None:
            initializer(*initargs)

    def work(self, most: int | None) -> None:
        """Run so many tasks, or all there are."""
        for number in count(1):
            packet = self._next()
            if packet is None:
                break
            last = number == most
            lent = [*packet.function.lent, *packet.arguments.lent]
            outcome = self._run(packet, lent)
            self.send(packet.ticket, *outcome, last, lent)
            if last:
                return
        self.send(0, Status.BYE, b"", [])

    def _next(self) -> TaskPacket | None:
        if are_kept():
            waiting = select.poll()
            waiting.register(self._tasks, select.POLLIN)
            if not waiting.poll(100):
                forget_opened()
        data = os.read(self._tasks, LONGEST)
        if not data:
            return None
        (ticket,) = TICKET.unpack_from(data)
        self._begun = self._slot.begin(ticket)  # from here on, the pool knows whose task it is
        packet = TaskPacket.decode(data)
        if packet.kind is Kind.STOP:
            return None
        lent = pointed_to(packet)
        if lent is not None:
            whole = self._reader.read(lent)
            packet = TaskPacket.decode(memoryview(whole))._replace(ticket=ticket)
        return packet

    def _run(self, packet: TaskPacket, lent: list[Lent]) -> Outcome:
        """What came of a task; nothing else of it is held any more."""
        if packet.kind not in (Kind.APART, Kind.ATOMS, Kind.JOINT_APART):
            return self._outcome(partial(self._value, packet, lent))
        try:
            function, buffers = self._function_and_buffers(packet, lent)
        except BaseException as error:
            return Status.RAISED, *self.packed(_explained(error))
        is_shared = packet.kind is Kind.JOINT_APART or is_stateless(function)
        work: Any = None
        outcomes: list[Any] = []
        lents: list[Lent] = []
        for number, item in enumerate(pickle.loads(packet.arguments.data)):
            if number:
                if self._slot.is_limited(packet.ticket, number):
                    break  # the pool has another worker do the rest
                self._slot.begin_item(number)
            try:
                if number and not is_shared:  # a copy of its own, as if it went alone
                    function = work = None  # who holds its buffers would have them copied
                    function = self._function_of(packet)
                if packet.kind is Kind.ATOMS:
                    work = partial(function, item)
                else:
                    data, blocks = item
                    work = partial(_apply, function, data, buffers[:blocks])
                    del buffers[:blocks]
                value = work()
            except BaseException as error:
                outcome: Outcome = Status.RAISED, *self.packed(_explained(error))
            else:
                if is_atom(value):
                    outcomes.append(value)
                    continue
                outcome = self._sent(value)
                del value
            outcomes.append((*outcome[:2], len(outcome[2])))
            lents += outcome[2]
        return Status.DONE, pickle.dumps(outcomes, 5), lents

    def _outcome(self, work: Callable[[], Any]) -> Outcome:
        try:
            value = work()
        except BaseException as error:
            return Status.RAISED, *self.packed(_explained(error))
        return self._sent(value)

    def _sent(self, value: Any) -> Outcome:
        try:
            return Status.DONE, *self.packed(value)
        except Exception as error:  # whatever the value is made of: the pool must be told
            return Status.RAISED, *self.packed(_explained(_unsent(error, value)))

    def _function_and_buffers(self, packet: TaskPacket, lent: list[Lent]) -> tuple[Any, list[Any]]:
        """What is called, and what its arguments lie on."""
        buffers = self._reader.leases(lent)
        if packet.kind in APPLIED_AS:
            return None, buffers
        of_function = len(packet.function.lent)
        return self._function(packet.function, buffers[:of_function]), buffers[of_function:]

    def _function_of(self, packet: TaskPacket) -> Any:
        return self._function(packet.function, self._reader.leases(packet.function.lent))

    def _value(self, packet: TaskPacket, lent: list[Lent]) -> Any:
        function, buffers = self._function_and_buffers(packet, lent)
        arguments = _unpacked(packet.arguments, buffers)
        del buffers
        kind = packet.kind
        if kind in APPLIED_AS:
            kind = APPLIED_AS[kind]
            function, arguments = arguments
        if kind is Kind.CALL:
            args, kwds = arguments
            return function(*args, **kwds)
        if packet.is_timed:
            arguments = self._each_told(arguments)
        # not list(map(...)), which ends without a word where the function raises StopIteration
        if kind is Kind.EACH:
            return [function(item) for item in arguments]
        return [function(*item) for item in arguments]

    def _function(self, part: Part, buffers: list[Any]) -> Any:
        """What a task calls; one that is found by its name is looked up once."""
        known, function = self._known
        if part.data and part.data == known:
            return function
        function = _unpacked(part, buffers)
        if type(function) is FunctionType:
            self._known = bytes(part.data), function
        return function

    def _each_told(self, items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            self._slot.begin_item(number)
            yield item

    def packed(self, value: Any) -> tuple[bytes, list[Lent]]:
        """A value as it is sent."""
        data, lent = pack(value, self._writer)
        return spill(data, lent, self._writer), lent

    def _take_back(self) -> None:
        try:
            read = self._halves + os.read(self._ends.returned.fileno(), 1 << 16)
        except BlockingIOError:
            return
        whole = len(read) - len(read) % TOKEN.size
        self._halves = read[whole:]
        self._writer.give_back(list(TOKEN.iter_unpack(read[:whole])))

    def _held(self, lent: Iterable[Lent]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Blocks of a task that are still in use, and those of earlier ones that no longer are."""
        self._reader.returned()
        live = self._reader.live()
        own = {one.token for one in lent}
        kept = [token for token in own if live[token] and token not in self._told]
        self._told.update(kept)
        ended = [token for token in self._told if not live[token]]
        self._told.difference_update(ended)
        return kept, ended

    def send(
        self,
        ticket: int,
        status: Status,
        data: bytes,
        results: list[Lent],
        last: bool = False,
        lent: Iterable[Lent] = (),
    ) -> None:
        """Tell the pool what came of a task, and which blocks of its arguments are in use."""
        kept, ended = self._held(lent) if lent or self._told else ([], [])
        elapsed_ns = time.monotonic_ns() - self._begun
        packet = ResultPacket(ticket, status, last, kept, ended, elapsed_ns, Part(data, results))
        _flush()
        try:
            self._ends.results.send(packet.encode())
        except BrokenPipeError:  # nobody reads: the pool is gone
            os._exit(1)
        self._slot.end()


def _flush() -> None:
    """What a task has printed is not lost, whatever ends the worker."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # there is none, or nobody reads it
            continue


def _apply(function: Any, item: bytes, buffers: list[Any]) -> Any:
    arguments = unpack(item, buffers)
    del buffers
    if function is None:  # it comes with its arguments
        function, arguments = arguments
    (argument,) = arguments
    del arguments
    return function(argument)


def _unpacked(part: Part, buffers: list[Any]) -> Any:
    if part.data:
        return unpack(part.data, buffers)
    return unpack(memoryview(buffers.pop()), buffers)


def _unsent(error: Exception, value: Any) -> Exception:
    try:
        unsent: Exception = multiprocessing_pool.MaybeEncodingError(error, value)  # type: ignore[attr-defined]
    except Exception:  # of the value's own description: its type must do
        unsent = multiprocessing_pool.MaybeEncodingError(error, type(value))  # type: ignore[attr-defined]
    return unsent


def _explained(error: BaseException) -> Raised:
    # the first frames are ours
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    error.__traceback__ = own
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pack(error.with_traceback(None), None)[0]
    except Exception as why:  # whatever the exception is made of: the pool must be told
        text += f"\nIt cannot be pickled: {type(why).__name__}: {why}\n"
        pickled = b""
    try:
        says = str(error)
    except Exception as why:  # an exception may fail to describe itself
        says = f"(its text cannot be made: {type(why).__name__})"
    return Raised(type(error).__qualname__, says, text, pickled)


def leave_signals_to_the_pool(life: End) -> None:
    """Of a process of a pool: it ends when told to or with the pool's, and not by Ctrl-C."""
    exit_with_owner(life)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # the terminal tells every process of Ctrl-C; the pool's decides. An ignored signal would stay
    # ignored in programs that a task starts, one with a handler does not
    signal.signal(signal.SIGINT, _leave_to_the_pool)


def _leave_to_the_pool(*_: object) -> None:
    """Ctrl-C."""


def _run_on(cpus: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # what may be used has changed since: the inherited mask holds
        return
