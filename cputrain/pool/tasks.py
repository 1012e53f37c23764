"""Calls of a pool's methods, the tasks that a call is split into, and how tasks are packed."""

from __future__ import annotations

import copyreg
import ctypes
import pickle
import threading
from contextlib import contextmanager
from functools import partial
from itertools import chain
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cputrain.errors import ArgumentTypeError, UsageError, argument_error
from cputrain.ipc import BlockRef, Writer, pack
from cputrain.ipc.arena import address_of
from cputrain.ipc.serialization import is_atom, is_plain
from cputrain.pool.packets import JOINT, LONGEST, PacketKind, PacketPayload, TaskPacket, points_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

MIN_MEMO_BYTES = 1 << 20
"""Minimum bytes of a buffer that is looked up among the buffers its call has sent before."""

SMALL_TASK_NS = 200_000
"""Nanoseconds; sending a shorter task costs about as much as running it."""

_BUNDLE_TIME_NS = 500_000
"""Nanoseconds of work in a bundle of small tasks."""

_MAX_BUNDLE_TASKS = 64

_MIN_COUNTED_BYTES = 4096
"""Minimum bytes of a task's pickle that count as memory held by waiting tasks."""

SUBMITTED_BYTES = 1 << 16
"""Bytes of packed arguments after which tasks are submitted while the rest are packed."""

SUBMITTED_TOGETHER = 64
"""Number of packed tasks after which tasks are submitted while the rest are packed."""

_MAX_MEMO_BLOCKS = 1024
"""Maximum number of large buffers that a call remembers."""

_MAX_BUNDLE_BYTES = 32 << 20
"""Bytes of results that a bundle may send back together."""

_MAX_INLINE_BYTES = 1024
"""Maximum bytes of a function's pickle inside each packet; a longer pickle goes into a block."""


class Options(NamedTuple):
    """Options of a pool, which a call can override."""

    timeout: float | None
    """Seconds that one call of the function may take."""
    retries: int
    """How many times a task is run again when its worker exited."""
    progress: bool
    """Whether to show a progress bar."""

    def checked(self) -> Options:
        """Return these options if they are valid, else raise UsageError."""
        timeout_s = self.timeout
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
            raise argument_error(timeout_s, int, float)(
                "timeout",
                "must be a number of seconds above 0",
                found=repr(timeout_s),
                do="Leave it out to let a call take as long as it takes.",
            )
        whole_number("retries", self.retries, at_least=0)
        return self

    def changed(
        self,
        timeout: float | None = None,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> Options:
        """Return these options, overridden by the arguments that are not None."""
        return Options(
            self.timeout if timeout is None else timeout,
            self.retries if retries is None else retries,
            self.progress if progress is None else progress,
        ).checked()


def whole_number(
    name: str, value: Any, *, at_least: int, do: str = "Leave it out for the default."
) -> None:
    """Raise UsageError unless `value` is an integer of `at_least` or more."""
    if not hasattr(value, "__index__") or value < at_least:
        raise (UsageError if hasattr(value, "__index__") else ArgumentTypeError)(
            name,
            f"must be a whole number, {at_least} or more",
            found=repr(value),
            do=do,
        )


def name_of(function: Any, nameless: str = "") -> str:
    """Return a function's name for messages and progress bars."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", nameless or type(function).__name__)


class Call:
    """A call of a pool's method: the function, how it is applied, and the state of its tasks."""

    def __init__(
        self,
        result: Any,
        function: Callable[..., Any],
        kind: PacketKind,
        name: str,
        options: Options,
        *,
        bundles: bool = False,
        function_once: bool = False,
    ) -> None:
        self.result = result
        """The result object, such as multiprocessing's `ApplyResult`; None after the last task."""
        self.function = function
        self.kind = kind
        self.name = name
        """The call's description in messages."""
        self.timeout = options.timeout
        self.retries = options.retries
        self.is_over = False
        """Whether unsent tasks are to be dropped."""
        self._is_complete = False
        self._lock = threading.Lock()
        self.may_bundle = bundles and options.timeout is None
        """Whether small tasks of one item each may be sent as a bundle."""
        self.bundle_time_ns = _BUNDLE_TIME_NS
        """Nanoseconds of work in a bundle."""
        self.bundle_below_ns = SMALL_TASK_NS
        """Nanoseconds; tasks that take longer are sent alone."""
        self.repeatable = False
        """Whether tasks are rerun whose result was lost when another task ended their worker."""
        self.ns_per_item = 0
        """Estimated nanoseconds per item; 0 while unknown."""
        self.max_task_bytes = 0
        """Maximum bytes of shared memory of any task's arguments or result."""
        self._num_open = 0
        self.has_frozen_items = False
        """Whether all items are immutable, so that they can be packed at any time."""
        self.packing = threading.RLock()
        """Held by the thread, the caller's or the engine's, that packs tasks of this call."""
        self._buffers_are_frozen = False
        """Whether no buffer changes between the tasks that are being packed."""
        self._has_fixed_function = function_once or pickled_by_reference(function)
        """Whether the function is packed once for all tasks."""
        self._packed_function: PacketPayload | None = None
        self._packed_function_state: tuple[Any, ...] | None = None
        """The state of the function when it was packed."""
        self._superseded: list[PacketPayload] = []
        """The function packed in earlier states, to which tasks may still refer."""
        self._memo: _Memo | None = None
        self._shared: list[torch.UntypedStorage] = []
        """Storages in shared memory to which the packed function refers."""

    @property
    def is_frozen(self) -> bool:
        """Whether neither function nor items can change: tasks may be packed at any time."""
        return self.has_frozen_items and self._has_fixed_function

    def freeze_function(self, writer: Writer) -> PacketPayload | None:
        """Pack the function now, for all tasks of the call; return it if it is small."""
        self._has_fixed_function = True
        try:
            payload, can_resend = self.pack_function(writer)
        except Exception:  # each task reports it, as it fails for the same reason
            return None
        writer.release(tokens_of(payload.blocks))
        return payload if can_resend and not payload.blocks else None

    def is_quick(self, tasks: list[Task]) -> bool:
        """Return whether packing the tasks is fast and calls no user code."""
        if len(tasks) == 1 and self._has_fixed_function:
            return is_plain(tasks[0].arguments)
        return self.is_frozen

    def is_joint(self) -> bool:
        """Return whether the function is pickled for each task, jointly with its arguments.

        As in multiprocessing, a stateful function is sent in its state when the task was made, each
        task gets a separate copy, and references shared by function and items stay shared.
        """
        if self._has_fixed_function:
            return False
        return _state_of_partial(self.function) is None

    def pack_function(self, writer: Writer) -> tuple[PacketPayload, bool]:
        """Return the packed function, and whether it can be sent again.

        The function is packed once for each of its states. Not for joint calls. Adds a reference to
        its blocks, which the caller gives back.
        """
        if self._has_fixed_function and self._packed_function is not None:
            if self._packed_function.blocks:
                writer.retain(self._packed_function.blocks)
            return self._packed_function, True
        with self.packing:
            state = None if self._has_fixed_function else _state_of_partial(self.function)
            if self._packed_function is None or not _are_same(state, self._packed_function_state):
                payload, can_resend = self._pack_function_now(writer)
                if not can_resend:
                    return payload, False
                if self._packed_function is not None:
                    self._superseded.append(self._packed_function)
                self._packed_function, self._packed_function_state = payload, state
            writer.retain(self._packed_function.blocks)
            return self._packed_function, True

    def _pack_function_now(self, writer: Writer) -> tuple[PacketPayload, bool]:
        """Pack the function in its present state; move a long pickle into a block."""
        payload, can_resend = packed(self.function, self.memo_for(writer), self._shared)
        if len(payload.data) > _MAX_INLINE_BYTES:
            try:
                payload = PacketPayload(
                    b"", [*payload.blocks, writer.lend(memoryview(payload.data))]
                )
            except BaseException:
                writer.release(tokens_of(payload.blocks))
                raise
        return payload, can_resend

    def pack_arguments_of(
        self, writer: Writer, value: Any, shared: list[torch.UntypedStorage]
    ) -> tuple[PacketPayload, bool]:
        """Pack the arguments of a task; return them, and whether they can be sent again."""
        if is_plain(value):
            return PacketPayload(pickle.dumps(value, 5), []), True
        with self.packing:
            memo = self.memo_for(writer)
            if not self._buffers_are_frozen:
                memo.forget_trusted()
            return packed(value, memo, shared)

    @contextmanager
    def frozen_buffers(self) -> Iterator[None]:
        """Assume within the block that no buffer changes, while several tasks are packed."""
        with self.packing:
            self._buffers_are_frozen = True
            try:
                yield
            finally:
                self._buffers_are_frozen = False
                if self._memo is not None:
                    self._memo.forget_trusted()

    def memo_for(self, writer: Writer) -> _Memo:
        """Return the call's memo of sent buffers."""
        if self._memo is None:
            self._memo = _Memo(writer)
        return self._memo

    def record_time(self, elapsed_ns: int, num_items: int) -> None:
        """Update the time per item: at once if slower, as a moving average if faster."""
        item_ns = elapsed_ns // max(1, num_items)
        self.ns_per_item = (
            item_ns if item_ns > self.ns_per_item else (3 * self.ns_per_item + item_ns) // 4
        )

    def record_bytes(self, num_bytes: int) -> None:
        """Record the bytes of shared memory of a task's arguments or result."""
        self.max_task_bytes = max(self.max_task_bytes, num_bytes)

    def bundle(self, num_waiting: int, num_workers: int) -> int:
        """Return how many of the waiting tasks to send as one bundle."""
        is_small = 0 < self.ns_per_item < self.bundle_below_ns
        if not self.may_bundle or not is_small or num_waiting < 4 * num_workers:
            return 1
        max_by_bytes = max(1, _MAX_BUNDLE_BYTES // max(1, self.max_task_bytes))
        max_by_time = self.bundle_time_ns // self.ns_per_item
        return min(_MAX_BUNDLE_TASKS, max_by_time, max_by_bytes, num_waiting // (2 * num_workers))

    def add_submitted(self, num_tasks: int, *, complete: bool) -> None:
        """Count submitted tasks; `complete` if no more follow."""
        with self._lock:
            self._num_open += num_tasks
            self._is_complete = self._is_complete or complete

    def add_ended(self, num_tasks: int, writer: Writer) -> None:
        """Count ended tasks; release the call's memory after the last."""
        with self._lock:
            self._num_open -= num_tasks
            is_over = self._is_complete and not self._num_open
        if is_over:
            self._release(writer)

    def _release(self, writer: Writer) -> None:
        """Give back the function's blocks and the memo."""
        for payload in (
            *self._superseded,
            *([self._packed_function] if self._packed_function else ()),
        ):
            writer.release(tokens_of(payload.blocks))
        self._superseded.clear()
        self._shared.clear()
        self._packed_function = None
        if self._memo is not None:
            self._memo.release_all()
            self._memo = None
        self.result = None  # breaks the reference cycle with the call and the pool


class Task:
    """A chunk of a call's items, which a worker runs before it sends the results."""

    __slots__ = (
        "arguments",
        "attempts",
        "blocks",
        "bytes",
        "call",
        "can_resend",
        "failure",
        "first",
        "function",
        "index",
        "is_prepared",
        "num_items",
        "packet",
        "payload",
        "prepared_bytes",
        "shared",
        "ticket",
    )

    def __init__(
        self, call: Call, index: int, first: int, arguments: Any, num_items: int = 1
    ) -> None:
        self.call = call
        self.num_items = num_items
        self.index = index
        self.first = first
        """The index of its first item in the call."""
        self.arguments = arguments
        self.is_prepared = False
        """Whether all that may change has been packed."""
        self.prepared_bytes = 0
        """Bytes that its packed arguments hold while it waits."""
        self.function: PacketPayload | None = None
        """The packed function, unless it is packed jointly with the arguments."""
        self.payload: PacketPayload | None = None
        """The packed arguments, once they are packed."""
        self.shared: Sequence[torch.UntypedStorage] = ()
        """Storages in shared memory to which the arguments refer; kept alive for the worker."""
        self.failure: Exception | None = None
        """The exception that packing raised."""
        self.can_resend = True
        """Whether the packed function and arguments can be sent again."""
        self.attempts = 0
        self.ticket = 0
        self.packet: bytearray | None = None
        self.blocks: list[BlockRef] = []
        self.bytes = 0
        """Bytes of its blocks in shared memory."""

    def prepare(self, writer: Writer) -> None:
        """Pack the function and mutable arguments; their blocks are held until `release`."""
        if self.failure is not None:
            raise self.failure
        if self.is_prepared:
            return
        call = self.call
        if not call.is_joint():
            self.function, self.can_resend = call.pack_function(writer)
            if self.function.blocks:
                self.blocks = list(self.function.blocks)
            if call.has_frozen_items or _is_frozen_item(self.arguments):
                self.is_prepared = True
                return
        self.pack_arguments(writer)
        self.is_prepared = True

    def pack_arguments(self, writer: Writer) -> PacketPayload:
        """Pack the arguments once, jointly with the function if the call is joint."""
        if self.payload is None:
            value = self.arguments if self.function is not None else self._function_and_arguments()
            shared: list[torch.UntypedStorage] = []
            self.payload, can_resend = self.call.pack_arguments_of(writer, value, shared)
            self.shared = shared
            self.can_resend = self.can_resend and can_resend
            if len(self.payload.data) > _MIN_COUNTED_BYTES:
                self.prepared_bytes = len(self.payload.data)
            if self.payload.blocks:
                self.blocks += self.payload.blocks
                self.prepared_bytes += sum(block.size for block in self.payload.blocks)
            if self.can_resend:
                self.arguments = None
        return self.payload

    def set_packed(self, data: bytes, function: PacketPayload | None) -> None:
        """Set arguments that have been packed already, and the function if it has been."""
        self.payload = PacketPayload(data, [])
        if function is not None:
            self.function = function
            self.is_prepared = True

    def prepare_without_arena(self) -> None:
        """Pack function and arguments outside the arena, when that is full."""
        value = self.arguments if self.function is not None else self._function_and_arguments()
        shared: list[torch.UntypedStorage] = []
        self.payload = PacketPayload(*pack(value, None, shared=shared))
        self.shared = shared
        self.prepared_bytes = len(self.payload.data)
        self.is_prepared = True

    @property
    def is_ready(self) -> bool:
        """Whether sending it calls no user code."""
        return self.is_prepared or self.failure is not None or self.call.is_frozen

    def _function_and_arguments(self) -> tuple[Any, Any]:
        """Return what a joint pickle holds."""
        return self.call.function, self.arguments

    def pack(self, writer: Writer) -> bytearray:
        """Return the task's encoded packet; encode it once."""
        if self.packet is None:
            if not self.is_prepared:
                self.prepare(writer)
            kind = self.call.kind
            payload = self.payload or self.pack_arguments(writer)
            self._encode(writer, kind if self.function is not None else JOINT[kind], payload)
        assert self.packet is not None
        return self.packet

    def _encode(self, writer: Writer, kind: PacketKind, arguments: PacketPayload) -> None:
        """Encode the packet; move a long packet into a block."""
        timed = self.call.timeout is not None
        packet = TaskPacket(
            0, kind, timed, self.function or PacketPayload(b"", []), arguments
        ).encode()
        if len(packet) > LONGEST:
            self.blocks.append(writer.lend(memoryview(packet), in_place=False))
            packet = points_to(self.blocks[-1])
        self.packet = packet
        self.bytes = sum(block.size for block in self.all_blocks())

    def all_blocks(self) -> list[BlockRef]:
        """Return the task's blocks, including those of its members."""
        return self.blocks

    def unpack(self, writer: Writer) -> None:
        """Drop packed data that can be sent only once, before the task is sent again."""
        if not self.can_resend:
            writer.release(tokens_of(self.blocks))
            self.blocks, self.packet, self.payload, self.can_resend = [], None, None, True
            self.function, self.is_prepared = None, False

    def members(self) -> list[Task]:
        """Return the tasks that this task consists of: itself, or a bundle's members."""
        return [self]

    def release(self, writer: Writer) -> None:
        """Give back the blocks of an ended task; a worker may still hold some of them."""
        if self.blocks:
            writer.release(tokens_of(self.blocks))
            self.blocks = []
        self.packet = self.payload = self.function = self.arguments = None
        self.shared = ()

    def description(self, item: int = 0) -> str:
        """Return the description of the task, or of one of its items, in messages."""
        if self.call.kind is PacketKind.CALL:
            return self.call.name
        return f"item {self.first + item} of {self.call.name}"


class _FunctionChangedError(Exception):
    """Raised where tasks with different functions are bundled; caught by the dispatch queue."""


class Bundle(Task):
    """Several small tasks of one item each, sent together."""

    __slots__ = ("revoked", "tasks")

    def __init__(self, tasks: list[Task]) -> None:
        first = tasks[0]
        super().__init__(first.call, first.index, first.first, None)
        self.is_prepared = first.is_prepared
        self.tasks = tasks
        self.revoked: tuple[int, int] | None = None
        """When (monotonic ns) the later items were taken back, and the item running then."""

    def pack(self, writer: Writer) -> bytearray:
        if self.packet is None:
            self._encode(writer, *self._pack_items(writer))
        assert self.packet is not None
        return self.packet

    def _pack_items(self, writer: Writer) -> tuple[PacketKind, PacketPayload]:
        """Pack each task's arguments separately, or all in one pickle if all are atoms."""
        if self.call.is_frozen:
            items = [task.arguments[0] for task in self.tasks if task.arguments]
            if len(items) == len(self.tasks) and all(map(is_atom, items)):
                self.function, self.can_resend = self.call.pack_function(writer)
                self.blocks = list(self.function.blocks)
                return PacketKind.ATOMS, PacketPayload(pickle.dumps(items, 5), [])
        for task in self.tasks:
            if not task.is_prepared:
                task.prepare(writer)
        self.function = self.tasks[0].function
        if any(task.function is not self.function for task in self.tasks):
            raise _FunctionChangedError
        if self.function is not None and all(task.payload is None for task in self.tasks):
            items = [task.arguments[0] for task in self.tasks]
            if all(map(is_atom, items)):
                return PacketKind.ATOMS, PacketPayload(pickle.dumps(items, 5), [])
        payloads = [task.payload or task.pack_arguments(writer) for task in self.tasks]
        data = pickle.dumps([(bytes(payload.data), len(payload.blocks)) for payload in payloads], 5)
        kind = PacketKind.APART if self.function is not None else PacketKind.JOINT_APART
        return kind, PacketPayload(
            data, [block for payload in payloads for block in payload.blocks]
        )

    def all_blocks(self) -> list[BlockRef]:
        return [*self.blocks, *(block for task in self.tasks for block in task.blocks)]

    def unpack(self, writer: Writer) -> None:
        for task in self.tasks:
            task.unpack(writer)

    def members(self) -> list[Task]:
        return self.tasks

    def description(self, item: int = 0) -> str:
        return self.tasks[item].description()

    def cut(self, num_kept: int) -> list[Task]:
        """Shorten the bundle to `num_kept` tasks; return the removed tasks."""
        removed = self.tasks[num_kept:]
        del self.tasks[num_kept:]
        return removed


def packed(
    value: Any, writer: Writer | _Memo, shared: list[torch.UntypedStorage]
) -> tuple[PacketPayload, bool]:
    """Pack a value; return it, and whether it can be unpacked more than once.

    Storages in shared memory are appended to `shared`, to be kept alive until it is unpacked.

    What multiprocessing's resource sharer sends by descriptor can be unpacked once only.
    """
    handed_out_before = _num_handed_out()
    data, blocks = pack(value, writer, shared=shared)
    return PacketPayload(data, blocks), _num_handed_out() == handed_out_before


def _num_handed_out() -> int:
    """Return how many descriptors multiprocessing's resource sharer has registered."""
    return int(resource_sharer._resource_sharer._key)  # type: ignore[attr-defined]


def tokens_of(blocks: list[BlockRef]) -> list[tuple[int, int]]:
    """Return the tokens of blocks, as `Writer.release` takes them."""
    return [block.token for block in blocks]


def pickled_by_reference(function: Any) -> bool:
    """Return whether the function is pickled by its qualified name, without any state."""
    kind = type(function)
    if kind is BuiltinFunctionType:  # a method of an object, unless that is a module
        return function.__self__ is None or isinstance(function.__self__, ModuleType)
    if isinstance(function, type):
        return not _has_reducer(type(function))
    return kind in _REFERENCES and not _has_reducer(kind)


_REFERENCES = (FunctionType, MethodDescriptorType, WrapperDescriptorType)


def _has_reducer(kind: type) -> bool:
    """Return whether the type has a registered reducer in place of the default pickling."""
    return kind in copyreg.dispatch_table or kind in ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def is_stateless(function: Any) -> bool:
    """Return whether no call changes the function, so that tasks can share one copy."""
    return pickled_by_reference(function) or _state_of_partial(function) is not None


def _state_of_partial(function: Any) -> tuple[Any, ...] | None:
    """Return the components of a partial of a plain function and atoms; None for all else."""
    if type(function) is not partial or vars(function):
        return None
    atoms = (*function.args, *function.keywords, *function.keywords.values())
    if not (all(map(is_atom, atoms)) and pickled_by_reference(function.func)):
        return None
    return (function.func, len(function.args), *atoms)


def _are_same(first: tuple[Any, ...] | None, second: tuple[Any, ...] | None) -> bool:
    if first is None or second is None:
        return first is second
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


_IMMUTABLE = frozenset((int, float, complex, bool, str, bytes, type(None)))


def small_arguments(items: list[Any]) -> bytes | None:
    """Return the pickle of a task's items, or None unless they are small and plain."""
    return pickle.dumps(items, 5) if is_plain(items) else None


def are_frozen(items: Any) -> bool:
    """Return whether all items are immutable: atoms, or tuples of atoms."""
    if type(items) in (range, str, bytes):
        return True
    if type(items) not in (list, tuple):
        return False
    kinds = set(map(type, items))
    if kinds <= _IMMUTABLE:
        return True
    return kinds == {tuple} and set(map(type, chain.from_iterable(items))) <= _IMMUTABLE


def _is_frozen_item(arguments: Any) -> bool:
    """Return whether the arguments are a list of a single atom."""
    return type(arguments) is list and len(arguments) == 1 and is_atom(arguments[0])


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Memo:
    """A call's memo of large buffers it has sent, so that an unchanged buffer is copied once.

    A buffer's block is only remembered at first; if the buffer is sent again, the block is held
    until the call ends. So a call with many distinct buffers holds only those in flight.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._blocks: dict[tuple[int, int], BlockRef] = {}
        """Blocks by address and length of the buffer."""
        self._held_keys: set[tuple[int, int]] = set()
        self._trusted: dict[tuple[int, int], memoryview] = {}
        """Buffers known to be unchanged; kept alive, so that their addresses are not reused."""

    def forget_trusted(self) -> None:
        """Forget which buffers are known to be unchanged."""
        self._trusted.clear()

    def lend(self, raw: memoryview, *, in_place: bool = True, is_lasting: bool = True) -> BlockRef:
        """Copy a buffer into a block, or return the block of an equal copy; as Writer.lend."""
        if raw.nbytes < MIN_MEMO_BYTES or not is_lasting:
            return self._writer.lend(raw, in_place=in_place)
        address = address_of(np.frombuffer(raw, np.uint8))
        key = (address, raw.nbytes)
        known_block = self._blocks.get(key)
        if known_block is not None and self._writer.retain([known_block]):
            if key in self._trusted or self._is_unchanged(address, known_block):
                self._trusted[key] = raw
                if key not in self._held_keys and self._writer.retain([known_block]):
                    self._held_keys.add(key)
                return known_block
            self._writer.release([known_block.token])
            if key in self._held_keys:
                self._held_keys.discard(key)
                self._writer.release([known_block.token])
        block = self._writer.lend(raw, in_place=in_place)
        self._blocks.pop(key, None)
        self._blocks[key] = block
        self._trusted[key] = raw
        if len(self._blocks) > _MAX_MEMO_BLOCKS:
            oldest_key = next(iter(self._blocks))
            if oldest_key not in self._held_keys:
                del self._blocks[oldest_key]
        return block

    def _is_unchanged(self, address: int, block: BlockRef) -> bool:
        """Return whether the buffer at `address` equals its copy in `block`."""
        block_address = self._writer.base_address + block.offset
        return block_address != address and not _memcmp(address, block_address, block.size)

    def release(self, tokens: list[tuple[int, int]]) -> None:
        """Release blocks, as `Writer.release`."""
        self._writer.release(tokens)

    def release_all(self) -> None:
        """Release all held blocks and forget all buffers, at the end of the call."""
        self._writer.release([self._blocks[key].token for key in self._held_keys])
        self._held_keys.clear()
        self._blocks.clear()
        self._trusted.clear()
