"""The worker process: read a task, write its ticket to the slot, run it, send its outcome."""

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
    empty_in_arena,
    exit_with_owner,
    forget_opened_storages,
    has_opened_storages,
    limit_to_one_thread,
    pack,
    spill,
    unpack,
)
from cputrain.ipc.serialization import is_atom
from cputrain.pool.packets import (
    APPLIED_AS,
    LONGEST,
    TICKET,
    TOKEN,
    PacketKind,
    PacketPayload,
    ResultPacket,
    Status,
    TaskPacket,
    pointed_to,
)
from cputrain.pool.seeds import seed_all
from cputrain.pool.tasks import is_stateless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cputrain.ipc import ArenaMemory, BlockRef, End, Sender
    from cputrain.pool.slots import Slot


class PoolWorkerEnds(NamedTuple):
    """The pipe ends and memory that a worker inherits from its pool."""

    tasks: End
    """The task pipe, which all workers read."""
    life: End
    """A pipe that is at its end once the pool's process has exited."""
    arguments: ArenaMemory
    """The arena in which the pool puts arguments, for all workers."""
    results: Sender
    returned: End
    """The pipe of tokens of result blocks that the pool has released."""
    memory: ArenaMemory
    """The arena in which this worker puts results."""
    slot: Slot

    def close(self) -> None:
        """Close what only the worker needs, in the pool's process after the start."""
        self.results.close()
        self.returned.close()


class WorkerSetup(NamedTuple):
    """Settings with which a worker is set up."""

    cpus: tuple[int, ...]
    """The CPU affinity; empty if it is inherited or the platform has none."""
    seed: int
    initializer: Callable[..., Any] | None
    initargs: Sequence[Any]
    packed: PacketPayload | None
    """The initializer and its arguments, packed into the arguments' arena, if not given above."""
    max_tasks: int | None
    """The number of tasks after which the worker exits."""
    forked: bool


EncodedOutcome: TypeAlias = tuple[Status, bytes, "list[BlockRef]"]
"""The status of a task, its pickled value or exception, and the blocks of that pickle."""


class Raised(NamedTuple):
    """An exception as it is sent to the pool."""

    kind: str
    says: str
    traceback: str
    pickled: bytes
    """The pickled exception; empty if it cannot be pickled."""


def serve(
    ends: PoolWorkerEnds, setup: WorkerSetup, close_others: Callable[[], None] | None
) -> None:
    """Set the worker up and run tasks until the pipe ends; the entry point of worker processes."""
    if close_others is not None:
        close_others()
    if setup.forked:
        # the parent's garbage is not this process's to finalize, and a collection would copy the
        # pages of all tracked objects
        gc.freeze()
    leave_signals_to_the_pool(ends.life)
    ends.life.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while it started
    if setup.cpus:
        _set_affinity(setup.cpus)
    limit_to_one_thread(forked=setup.forked)
    seed_all(setup.seed)
    worker = _Worker(ends)
    try:
        worker.set_up(setup)
    except BaseException as error:
        worker.send(0, Status.NOT_SET_UP, *worker.packed(_to_raised(error)))
        return
    worker.send(os.getpid(), Status.READY, b"", [])
    worker.work(setup.max_tasks)


_process_writers: list[Writer] = []
"""This process's writer of results, if it is a worker."""


def room(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor for a task's result, in the result arena if this is a worker."""
    return empty_in_arena(shape, dtype, _process_writers[0] if _process_writers else None)


class _Worker:
    """The state of this worker process."""

    def __init__(self, ends: PoolWorkerEnds) -> None:
        self._tasks = ends.tasks.fileno()
        self._ends = ends
        self._slot = ends.slot
        self._writer = Writer(ends.memory, self._receive_returned)
        _process_writers[:] = [self._writer]
        self._reader = PrivateReader(ends.arguments)
        self._reported: set[tuple[int, int]] = set()
        """Tokens of blocks of earlier tasks that were reported to the pool as still held."""
        self._partial_tokens = b""
        self._begun_ns = 0
        self._cached_function: tuple[bytes, Any] = b"", None
        os.set_blocking(ends.returned.fileno(), False)

    def set_up(self, setup: WorkerSetup) -> None:
        """Call the initializer, if there is one."""
        initializer, initargs = setup.initializer, setup.initargs
        if setup.packed is not None:
            blocks = setup.packed.blocks
            initializer, initargs = _unpack_payload(setup.packed, self._reader.lease(blocks))
            self._reported.update(block.token for block in blocks)
        if initializer is not None:
            initializer(*initargs)

    def work(self, max_tasks: int | None) -> None:
        """Run up to `max_tasks` tasks, or tasks until the pipe ends."""
        for number in count(1):
            packet = self._read_task()
            if packet is None:
                break
            is_last = number == max_tasks
            blocks = [*packet.function.blocks, *packet.arguments.blocks]
            outcome = self._run(packet, blocks)
            self.send(packet.ticket, *outcome, is_last, blocks)
            if is_last:
                return
        self.send(0, Status.BYE, b"", [])

    def _read_task(self) -> TaskPacket | None:
        """Read the next task; return None at STOP or at the pipe's end."""
        if has_opened_storages():
            poll = select.poll()
            poll.register(self._tasks, select.POLLIN)
            if not poll.poll(100):
                forget_opened_storages()
        data = os.read(self._tasks, LONGEST)
        if not data:
            return None
        (ticket,) = TICKET.unpack_from(data)
        self._begun_ns = self._slot.begin(ticket)  # from here on, the pool knows its worker
        packet = TaskPacket.decode(data)
        if packet.kind is PacketKind.STOP:
            return None
        block = pointed_to(packet)
        if block is not None:
            encoded = self._reader.read(block)
            packet = TaskPacket.decode(memoryview(encoded))._replace(ticket=ticket)
        return packet

    def _run(self, packet: TaskPacket, blocks: list[BlockRef]) -> EncodedOutcome:
        """Run a task and return its outcome; keep no other reference to the task's data."""
        if packet.kind not in (PacketKind.APART, PacketKind.ATOMS, PacketKind.JOINT_APART):
            return self._run_and_pack(partial(self._compute, packet, blocks))
        try:
            function, buffers = self._function_and_buffers(packet, blocks)
        except BaseException as error:
            return Status.RAISED, *self.packed(_to_raised(error))
        is_shared = packet.kind is PacketKind.JOINT_APART or is_stateless(function)
        work: Any = None
        outcomes: list[Any] = []
        result_blocks: list[BlockRef] = []
        for number, item in enumerate(pickle.loads(packet.arguments.data)):
            if number:
                if self._slot.is_limited(packet.ticket, number):
                    break  # the pool has taken the rest back
                self._slot.begin_item(number)
            try:
                if number and not is_shared:  # a separate copy, as if the task were sent alone
                    function = work = None  # a reference to its buffers would have them copied
                    function = self._function_of(packet)
                if packet.kind is PacketKind.ATOMS:
                    work = partial(function, item)
                else:
                    data, num_blocks = item
                    work = partial(_apply, function, data, buffers[:num_blocks])
                    del buffers[:num_blocks]
                value = work()
            except BaseException as error:
                outcome: EncodedOutcome = Status.RAISED, *self.packed(_to_raised(error))
            else:
                if is_atom(value):
                    outcomes.append(value)
                    continue
                outcome = self._pack_result(value)
                del value
            outcomes.append((*outcome[:2], len(outcome[2])))
            result_blocks += outcome[2]
        return Status.DONE, pickle.dumps(outcomes, 5), result_blocks

    def _run_and_pack(self, work: Callable[[], Any]) -> EncodedOutcome:
        """Call `work` and pack its value or exception."""
        try:
            value = work()
        except BaseException as error:
            return Status.RAISED, *self.packed(_to_raised(error))
        return self._pack_result(value)

    def _pack_result(self, value: Any) -> EncodedOutcome:
        """Pack a returned value, or the error if it cannot be pickled."""
        try:
            return Status.DONE, *self.packed(value)
        except Exception as error:  # from user code while pickling: the pool must get an outcome
            return Status.RAISED, *self.packed(_to_raised(_encoding_error(error, value)))

    def _function_and_buffers(
        self, packet: TaskPacket, blocks: list[BlockRef]
    ) -> tuple[Any, list[Any]]:
        """Return the function (None if it comes with the arguments) and the arguments' buffers."""
        buffers = self._reader.lease(blocks)
        if packet.kind in APPLIED_AS:
            return None, buffers
        num_function_blocks = len(packet.function.blocks)
        return self._function(packet.function, buffers[:num_function_blocks]), buffers[
            num_function_blocks:
        ]

    def _function_of(self, packet: TaskPacket) -> Any:
        """Unpack the packet's function anew."""
        return self._function(packet.function, self._reader.lease(packet.function.blocks))

    def _compute(self, packet: TaskPacket, blocks: list[BlockRef]) -> Any:
        """Unpack function and arguments and apply the function as the packet's kind says."""
        function, buffers = self._function_and_buffers(packet, blocks)
        arguments = _unpack_payload(packet.arguments, buffers)
        del buffers
        kind = packet.kind
        if kind in APPLIED_AS:
            kind = APPLIED_AS[kind]
            function, arguments = arguments
        if kind is PacketKind.CALL:
            args, kwds = arguments
            return function(*args, **kwds)
        if packet.is_timed:
            arguments = self._record_items(arguments)
        # not list(map(...)), which silently stops where the function raises StopIteration
        if kind is PacketKind.EACH:
            return [function(item) for item in arguments]
        return [function(*item) for item in arguments]

    def _function(self, payload: PacketPayload, buffers: list[Any]) -> Any:
        """Unpack a task's function; a function that is pickled by name is cached."""
        cached_pickle, function = self._cached_function
        if payload.data and payload.data == cached_pickle:
            return function
        function = _unpack_payload(payload, buffers)
        if type(function) is FunctionType:
            self._cached_function = bytes(payload.data), function
        return function

    def _record_items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items, and write the begin of each to the slot."""
        for number, item in enumerate(items):
            self._slot.begin_item(number)
            yield item

    def packed(self, value: Any) -> tuple[bytes, list[BlockRef]]:
        """Pack a value; move a large pickle into a block."""
        data, blocks = pack(value, self._writer)
        return spill(data, blocks, self._writer), blocks

    def _receive_returned(self) -> None:
        """Free result blocks that the pool has released, as far as their tokens have arrived."""
        try:
            received = self._partial_tokens + os.read(self._ends.returned.fileno(), 1 << 16)
        except BlockingIOError:
            return
        num_whole_bytes = len(received) - len(received) % TOKEN.size
        self._partial_tokens = received[num_whole_bytes:]
        self._writer.release(list(TOKEN.iter_unpack(received[:num_whole_bytes])))

    def _update_held(
        self, blocks: Iterable[BlockRef]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return tokens of this task's blocks in use, and of earlier blocks no longer in use."""
        self._reader.take_released()
        live_tokens = self._reader.live_tokens()
        tokens = {block.token for block in blocks}
        newly_held = [
            token for token in tokens if live_tokens[token] and token not in self._reported
        ]
        self._reported.update(newly_held)
        released = [token for token in self._reported if not live_tokens[token]]
        self._reported.difference_update(released)
        return newly_held, released

    def send(
        self,
        ticket: int,
        status: Status,
        data: bytes,
        results: list[BlockRef],
        is_last: bool = False,
        blocks: Iterable[BlockRef] = (),
    ) -> None:
        """Send a task's outcome, and which blocks of its arguments are still in use."""
        newly_held, released = self._update_held(blocks) if blocks or self._reported else ([], [])
        elapsed_ns = time.monotonic_ns() - self._begun_ns
        packet = ResultPacket(
            ticket, status, is_last, newly_held, released, elapsed_ns, PacketPayload(data, results)
        )
        _flush()
        try:
            self._ends.results.send(packet.encode())
        except BrokenPipeError:  # the pool's process has exited
            os._exit(1)
        self._slot.end()


def _flush() -> None:
    """Flush stdout and stderr, so that no output is lost if the worker is killed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # no stream, closed, or a broken pipe
            continue


def _apply(function: Any, item: bytes, buffers: list[Any]) -> Any:
    """Unpack one item of a bundle and call the function with it."""
    arguments = unpack(item, buffers)
    del buffers
    if function is None:  # pickled jointly with its arguments
        function, arguments = arguments
    (argument,) = arguments
    del arguments
    return function(argument)


def _unpack_payload(payload: PacketPayload, buffers: list[Any]) -> Any:
    """Unpack a payload whose blocks are mapped as `buffers`."""
    if payload.data:
        return unpack(payload.data, buffers)
    return unpack(memoryview(buffers.pop()), buffers)


def _encoding_error(error: Exception, value: Any) -> Exception:
    """Return multiprocessing's error for a value that cannot be pickled."""
    try:
        encoding_error: Exception = multiprocessing_pool.MaybeEncodingError(error, value)  # type: ignore[attr-defined]
    except Exception:  # raised by the value's __repr__: describe its type instead
        encoding_error = multiprocessing_pool.MaybeEncodingError(error, type(value))  # type: ignore[attr-defined]
    return encoding_error


def _to_raised(error: BaseException) -> Raised:
    """Return an exception with its traceback as text, in a form that can be pickled."""
    # skip the frames of this module
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    error.__traceback__ = tb
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pack(error.with_traceback(None), None)[0]
    except Exception as failure:  # from user code while pickling: the pool must get an outcome
        text += f"\nIt cannot be pickled: {type(failure).__name__}: {failure}\n"
        pickled = b""
    try:
        message = str(error)
    except Exception as failure:  # raised by the exception's __str__
        message = f"(its text cannot be made: {type(failure).__name__})"
    return Raised(type(error).__qualname__, message, text, pickled)


def leave_signals_to_the_pool(life: End) -> None:
    """Make this process end by SIGTERM or with the pool's process, and not by Ctrl-C."""
    exit_with_owner(life)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # the terminal sends SIGINT to the whole process group; the pool's process decides. SIG_IGN
    # would be inherited by programs that a task starts, a handler is not
    signal.signal(signal.SIGINT, _ignore_interrupt)


def _ignore_interrupt(*_: object) -> None:
    """Handle SIGINT by doing nothing."""


def _set_affinity(cpus: tuple[int, ...]) -> None:
    """Set this process's CPU affinity."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # the allowed CPUs have changed since: keep the inherited mask
        return
