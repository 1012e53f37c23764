"""A call of a pool's method, and the tasks it is cut into."""

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

from cputrain.errors import UsageError
from cputrain.ipc import Lent, Writer, pack
from cputrain.ipc.arena import address_of
from cputrain.ipc.serialization import is_atom, is_plain
from cputrain.pool.packets import JOINT, LONGEST, Kind, Part, TaskPacket, points_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

REMEMBERED = 1 << 20
"""Bytes from which on a buffer is looked for among those that a call has sent before."""

SMALL = 200_000
"""Nanoseconds. A task that takes less costs about as much to send as to do."""

_BUNDLE_TIME = 500_000
"""Nanoseconds of small tasks that are sent together."""

_BUNDLE_MOST = 64

_COUNTED = 4096
"""Bytes of a task beyond which they are counted as memory that waiting tasks hold."""

SUBMITTED_BYTES = 1 << 16
"""Bytes of packed arguments after which tasks are submitted, while others are packed."""

SUBMITTED_TOGETHER = 64
"""Tasks after which they are."""

_KNOWN_MOST = 1024
"""Large buffers of a call that are looked for when they come again."""

_BUNDLE_BYTES = 32 << 20
"""Bytes of results that come back together."""

_IN_PLACE = 1024
"""Bytes of a function's pickle that go with each task; a longer one lies in a block."""


class Options(NamedTuple):
    """What can be said of a pool, and of each call."""

    timeout: float | None
    """Seconds that one call of the function may take."""
    retries: int
    """How often a task is run again whose worker died."""
    progress: bool
    """Whether a bar is shown."""

    def checked(self) -> Options:
        """These, if they make sense."""
        seconds = self.timeout
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise UsageError(
                "timeout",
                "must be a number of seconds above 0",
                found=repr(seconds),
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
        """These, with what is said of one call."""
        return Options(
            self.timeout if timeout is None else timeout,
            self.retries if retries is None else retries,
            self.progress if progress is None else progress,
        ).checked()


def whole_number(
    name: str, value: Any, *, at_least: int, do: str = "Leave it out for the default."
) -> None:
    """Raise if a parameter is not one, or too small."""
    if not hasattr(value, "__index__") or value < at_least:
        raise UsageError(
            name,
            f"must be a whole number, {at_least} or more",
            found=repr(value),
            do=do,
        )


def name_of(function: Any, nameless: str = "") -> str:
    """As messages and bars call a function."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", nameless or type(function).__name__)


class Call:
    """One call: a function, and how it is applied."""

    def __init__(
        self,
        result: Any,
        function: Callable[..., Any],
        kind: Kind,
        name: str,
        options: Options,
        *,
        bundles: bool = False,
        function_once: bool = False,
    ) -> None:
        self.result = result
        """Where what comes of tasks goes, as one of multiprocessing's pool. None at the end."""
        self.function = function
        self.kind = kind
        self.name = name
        """As messages call it."""
        self.timeout = options.timeout
        self.retries = options.retries
        self.over = False
        """Nobody waits for what has not been sent."""
        self._complete = False
        self._lock = threading.Lock()
        self.may_bundle = bundles and options.timeout is None
        """Whether tasks, of one item each, may go together where they are small."""
        self.bundle_time = _BUNDLE_TIME
        """Nanoseconds of work that are sent together."""
        self.bundle_below = SMALL
        """Nanoseconds. A task that takes as long goes alone."""
        self.repeatable = False
        """Whether one that lost its result, because another ended their worker, is done again."""
        self.pace = 0
        """Nanoseconds that an item takes; 0 as long as nobody knows."""
        self.heaviest = 0
        """Bytes of shared memory that a result of it has taken."""
        self._open = 0
        self.has_frozen_items = False
        """Whether no item can change, so that it does not matter when one is packed."""
        self.packing = threading.RLock()
        """Held while something of this call is packed: by the caller's thread, or the engine's."""
        self._is_one_moment = False
        """Whether nothing can change between one task and the next that are packed now."""
        self._has_one_function = function_once or pickled_by_reference(function)
        """Whether it is sent as it was at first: it cannot change, or is not to."""
        self._packed: Part | None = None
        self._packed_state: tuple[Any, ...] | None = None
        """Of which the pickle was made."""
        self._superseded: list[Part] = []
        """Pickles of earlier states, which tasks may still refer to."""
        self._memo: _Memo | None = None
        self._shared: list[torch.UntypedStorage] = []
        """Storages in shared memory that the function has referred to when it was packed."""

    @property
    def is_frozen(self) -> bool:
        """Whether neither function nor items can change: nothing must be packed in time."""
        return self.has_frozen_items and self._has_one_function

    def freeze_function(self, writer: Writer) -> Part | None:
        """Send the function as it is now, whatever becomes of it; return it if it is small."""
        self._has_one_function = True
        try:
            part, lasts = self.function_in(writer)
        except Exception:  # told of each task, which fails for the same reason
            return None
        writer.give_back(tokens_of(part.lent))
        return part if lasts and not part.lent else None

    def is_quick(self, tasks: list[Task]) -> bool:
        """Whether to pack what must be packed in time takes no time, and calls no script's code."""
        if len(tasks) == 1 and self._has_one_function:
            return is_plain(tasks[0].arguments)
        return self.is_frozen

    def is_joint(self) -> bool:
        """Whether the function is pickled anew for each task, and together with its arguments.

        So it is with multiprocessing: the function has the state that it had when the item was
        made, each task has a copy of its own, and what function and items share they share there.
        """
        if self._has_one_function:
            return False
        return _state_of_partial(self.function) is None

    def function_in(self, writer: Writer) -> tuple[Part, bool]:
        """The function, packed once as long as it is the same, and whether it can be sent again.

        Not of a joint call. Its blocks have one more holder.
        """
        if self._has_one_function and self._packed is not None:
            if self._packed.lent:
                writer.keep(self._packed.lent)
            return self._packed, True
        with self.packing:
            state = None if self._has_one_function else _state_of_partial(self.function)
            if self._packed is None or not _are_same(state, self._packed_state):
                part, lasts = self._pack_function(writer)
                if not lasts:
                    return part, False
                if self._packed is not None:
                    self._superseded.append(self._packed)
                self._packed, self._packed_state = part, state
            writer.keep(self._packed.lent)
            return self._packed, True

    def _pack_function(self, writer: Writer) -> tuple[Part, bool]:
        part, lasts = packed(self.function, self.memo_in(writer), self._shared)
        if len(part.data) > _IN_PLACE:
            try:
                part = Part(b"", [*part.lent, writer.lend(memoryview(part.data))])
            except BaseException:
                writer.give_back(tokens_of(part.lent))
                raise
        return part, lasts

    def arguments_in(
        self, writer: Writer, payload: Any, shared: list[torch.UntypedStorage]
    ) -> tuple[Part, bool]:
        """The arguments of one task, and whether they can be sent again; see `packed`."""
        if is_plain(payload):
            return Part(pickle.dumps(payload, 5), []), True
        with self.packing:
            memo = self.memo_in(writer)
            if not self._is_one_moment:
                memo.forget_trusted()
            return packed(payload, memo, shared)

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """While tasks are packed one after the other: no buffer is changed between them."""
        with self.packing:
            self._is_one_moment = True
            try:
                yield
            finally:
                self._is_one_moment = False
                if self._memo is not None:
                    self._memo.forget_trusted()

    def memo_in(self, writer: Writer) -> _Memo:
        """What this call has sent."""
        if self._memo is None:
            self._memo = _Memo(writer)
        return self._memo

    def took(self, nanoseconds: int, items: int) -> None:
        """So long for so many items: what is slower counts at once, what is faster in time."""
        each = nanoseconds // max(1, items)
        self.pace = each if each > self.pace else (3 * self.pace + each) // 4

    def weighs(self, size: int) -> None:
        """What has been sent or come back of one task has taken so many bytes."""
        self.heaviest = max(self.heaviest, size)

    def bundle(self, waiting: int, processes: int) -> int:
        """How many tasks are to go together, when so many wait."""
        small = 0 < self.pace < self.bundle_below
        if not self.may_bundle or not small or waiting < 4 * processes:
            return 1
        light = max(1, _BUNDLE_BYTES // max(1, self.heaviest))
        quick = self.bundle_time // self.pace
        return min(_BUNDLE_MOST, quick, light, waiting // (2 * processes))

    def begun(self, tasks: int, *, complete: bool) -> None:
        """So many tasks have been submitted; `complete` if no more follow."""
        with self._lock:
            self._open += tasks
            self._complete = self._complete or complete

    def ended(self, tasks: int, writer: Writer) -> None:
        """So many have ended."""
        with self._lock:
            self._open -= tasks
            over = self._complete and not self._open
        if over:
            self._release(writer)

    def _release(self, writer: Writer) -> None:
        for part in (*self._superseded, *([self._packed] if self._packed else ())):
            writer.give_back(tokens_of(part.lent))
        self._superseded.clear()
        self._shared.clear()
        self._packed = None
        if self._memo is not None:
            self._memo.release()
            self._memo = None
        self.result = None  # which may hold this call, and with it the pool


class Task:
    """A part of a call: what one worker does before it tells of it."""

    __slots__ = (
        "arguments",
        "attempts",
        "bytes",
        "call",
        "failure",
        "first",
        "function",
        "index",
        "is_prepared",
        "lasts",
        "lent",
        "num_items",
        "packet",
        "part",
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
        """The number of its first item."""
        self.arguments = arguments
        self.is_prepared = False
        """Whether what the script changes from now on is of no concern to it."""
        self.prepared_bytes = 0
        """What it holds while it waits."""
        self.function: Part | None = None
        """The function, unless it is packed together with the arguments."""
        self.part: Part | None = None
        """The arguments, once they have been packed."""
        self.shared: Sequence[torch.UntypedStorage] = ()
        """Storages in shared memory that they refer to, and a worker has yet to open."""
        self.failure: Exception | None = None
        """Why they cannot be."""
        self.lasts = True
        """Whether what has been packed can be sent again."""
        self.attempts = 0
        self.ticket = 0
        self.packet: bytearray | None = None
        self.lent: list[Lent] = []
        self.bytes = 0
        """What it takes in shared memory."""

    def prepare(self, writer: Writer) -> None:
        """Pack what may change, as it is now; its blocks are held until `release`."""
        if self.failure is not None:
            raise self.failure
        if self.is_prepared:
            return
        call = self.call
        if not call.is_joint():
            self.function, self.lasts = call.function_in(writer)
            if self.function.lent:
                self.lent = list(self.function.lent)
            if call.has_frozen_items or _is_frozen_item(self.arguments):
                self.is_prepared = True
                return
        self.pack_arguments(writer)
        self.is_prepared = True

    def pack_arguments(self, writer: Writer) -> Part:
        """The arguments, and with them the function of a joint call, packed once."""
        if self.part is None:
            payload = self.arguments if self.function is not None else self._jointly()
            shared: list[torch.UntypedStorage] = []
            self.part, lasts = self.call.arguments_in(writer, payload, shared)
            self.shared = shared
            self.lasts = self.lasts and lasts
            if len(self.part.data) > _COUNTED:
                self.prepared_bytes = len(self.part.data)
            if self.part.lent:
                self.lent += self.part.lent
                self.prepared_bytes += sum(one.size for one in self.part.lent)
            if self.lasts:
                self.arguments = None
        return self.part

    def is_packed_as(self, data: bytes, function: Part | None) -> None:
        """Give it arguments that have been packed already, and its function if that has been."""
        self.part = Part(data, [])
        if function is not None:
            self.function = function
            self.is_prepared = True

    def prepare_outside(self) -> None:
        """Prepare it without shared memory, of which there is no more."""
        payload = self.arguments if self.function is not None else self._jointly()
        shared: list[torch.UntypedStorage] = []
        self.part = Part(*pack(payload, None, shared=shared))
        self.shared = shared
        self.prepared_bytes = len(self.part.data)
        self.is_prepared = True

    @property
    def is_ready(self) -> bool:
        """Whether to send it calls nothing that a script has written."""
        return self.is_prepared or self.failure is not None or self.call.is_frozen

    def _jointly(self) -> tuple[Any, Any]:
        return self.call.function, self.arguments

    def pack(self, writer: Writer) -> bytearray:
        """Its packet, made once."""
        if self.packet is None:
            if not self.is_prepared:
                self.prepare(writer)
            kind = self.call.kind
            part = self.part or self.pack_arguments(writer)
            self._seal(writer, kind if self.function is not None else JOINT[kind], part)
        assert self.packet is not None
        return self.packet

    def _seal(self, writer: Writer, kind: Kind, arguments: Part) -> None:
        timed = self.call.timeout is not None
        packet = TaskPacket(0, kind, timed, self.function or Part(b"", []), arguments).encode()
        if len(packet) > LONGEST:
            self.lent.append(writer.lend(memoryview(packet), in_place=False))
            packet = points_to(self.lent[-1])
        self.packet = packet
        self.bytes = sum(one.size for one in self.all_lent())

    def all_lent(self) -> list[Lent]:
        """Its blocks, and those of what it stands for."""
        return self.lent

    def unpack(self, writer: Writer) -> None:
        """It is to be sent again: make anew what can be sent only once."""
        if not self.lasts:
            writer.give_back(tokens_of(self.lent))
            self.lent, self.packet, self.part, self.lasts = [], None, None, True
            self.function, self.is_prepared = None, False

    def each(self) -> list[Task]:
        """The tasks that this stands for."""
        return [self]

    def release(self, writer: Writer) -> None:
        """It has ended; only what a worker has kept is still in use."""
        if self.lent:
            writer.give_back(tokens_of(self.lent))
            self.lent = []
        self.packet = self.part = self.function = self.arguments = None
        self.shared = ()

    def named(self, item: int = 0) -> str:
        """As messages call it."""
        if self.call.kind is Kind.CALL:
            return self.call.name
        return f"item {self.first + item} of {self.call.name}"


class _FunctionChanged(Exception):  # noqa: N818  (never seen by a script)
    """Tasks of one call cannot travel together, as their function is not the same."""


class Bundle(Task):
    """Several small tasks of one item each, on their way together."""

    __slots__ = ("revoked", "tasks")

    def __init__(self, tasks: list[Task]) -> None:
        first = tasks[0]
        super().__init__(first.call, first.index, first.first, None)
        self.is_prepared = first.is_prepared
        self.tasks = tasks
        self.revoked: tuple[int, int] | None = None
        """Since when (nanoseconds) and from which item on the rest is wanted back."""

    def pack(self, writer: Writer) -> bytearray:
        if self.packet is None:
            self._seal(writer, *self._arguments(writer))
        assert self.packet is not None
        return self.packet

    def _arguments(self, writer: Writer) -> tuple[Kind, Part]:
        """Each task's are a pickle of their own, as if it went alone, unless all are atoms."""
        if self.call.is_frozen:
            items = [task.arguments[0] for task in self.tasks if task.arguments]
            if len(items) == len(self.tasks) and all(map(is_atom, items)):
                self.function, self.lasts = self.call.function_in(writer)
                self.lent = list(self.function.lent)
                return Kind.ATOMS, Part(pickle.dumps(items, 5), [])
        for task in self.tasks:
            if not task.is_prepared:
                task.prepare(writer)
        self.function = self.tasks[0].function
        if any(task.function is not self.function for task in self.tasks):
            raise _FunctionChanged
        if self.function is not None and all(task.part is None for task in self.tasks):
            items = [task.arguments[0] for task in self.tasks]
            if all(map(is_atom, items)):
                return Kind.ATOMS, Part(pickle.dumps(items, 5), [])
        parts = [task.part or task.pack_arguments(writer) for task in self.tasks]
        data = pickle.dumps([(bytes(part.data), len(part.lent)) for part in parts], 5)
        kind = Kind.APART if self.function is not None else Kind.JOINT_APART
        return kind, Part(data, [one for part in parts for one in part.lent])

    def all_lent(self) -> list[Lent]:
        return [*self.lent, *(one for task in self.tasks for one in task.lent)]

    def unpack(self, writer: Writer) -> None:
        for task in self.tasks:
            task.unpack(writer)

    def each(self) -> list[Task]:
        return self.tasks

    def named(self, item: int = 0) -> str:
        return self.tasks[item].named()

    def cut(self, items: int) -> list[Task]:
        """Leave it so many; the others."""
        rest = self.tasks[items:]
        del self.tasks[items:]
        return rest


def packed(
    thing: Any, writer: Writer | _Memo, shared: list[torch.UntypedStorage]
) -> tuple[Part, bool]:
    """Something packed, and whether it can be unpacked more than once.

    Storages in shared memory are appended to `shared`, to be held until it is unpacked.

    What multiprocessing sends by a descriptor is handed out by a server, to whoever asks first.
    """
    before = _handed_out()
    data, lent = pack(thing, writer, shared=shared)
    return Part(data, lent), _handed_out() == before


def _handed_out() -> int:
    return int(resource_sharer._resource_sharer._key)  # type: ignore[attr-defined]


def tokens_of(lent: list[Lent]) -> list[tuple[int, int]]:
    """As blocks are given back."""
    return [one.token for one in lent]


def pickled_by_reference(function: Any) -> bool:
    """Whether a pickle of it is its name: nothing that a script changes can be in it."""
    kind = type(function)
    if kind is BuiltinFunctionType:  # a method of an object, unless that is a module
        return function.__self__ is None or isinstance(function.__self__, ModuleType)
    if isinstance(function, type):
        return not _has_reducer(type(function))
    return kind in _REFERENCES and not _has_reducer(kind)


_REFERENCES = (FunctionType, MethodDescriptorType, WrapperDescriptorType)


def _has_reducer(kind: type) -> bool:
    """Whether things of this type are pickled in another way than by default."""
    return kind in copyreg.dispatch_table or kind in ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def is_stateless(function: Any) -> bool:
    """Whether no call of it changes it, so that tasks need no copies of their own."""
    return pickled_by_reference(function) or _state_of_partial(function) is not None


def _state_of_partial(function: Any) -> tuple[Any, ...] | None:
    """What a partial is made of, if that is a plain function and atoms: then no task changes it."""
    if type(function) is not partial or vars(function):
        return None
    atoms = (*function.args, *function.keywords, *function.keywords.values())
    if not (all(map(is_atom, atoms)) and pickled_by_reference(function.func)):
        return None
    return (function.func, len(function.args), *atoms)


def _are_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


_IMMUTABLE = frozenset((int, float, complex, bool, str, bytes, type(None)))


def small_arguments(items: list[Any]) -> bytes | None:
    """The pickle of a task's items, if they are small and plain."""
    return pickle.dumps(items, 5) if is_plain(items) else None


def are_frozen(items: Any) -> bool:
    """Whether items cannot change: atoms, and tuples of such, in a list or the like."""
    if type(items) in (range, str, bytes):
        return True
    if type(items) not in (list, tuple):
        return False
    kinds = set(map(type, items))
    if kinds <= _IMMUTABLE:
        return True
    return kinds == {tuple} and set(map(type, chain.from_iterable(items))) <= _IMMUTABLE


def _is_frozen_item(arguments: Any) -> bool:
    return type(arguments) is list and len(arguments) == 1 and is_atom(arguments[0])


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Memo:
    """Large buffers that a call has sent: what comes again unchanged is not copied again.

    The first time a buffer's block is merely known; if it comes again it is held until the call
    ends. So a call with many different buffers holds no more of them than are on their way.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[tuple[int, int], Lent] = {}
        """By address and length."""
        self._held: set[tuple[int, int]] = set()
        self._trusted: dict[tuple[int, int], memoryview] = {}
        """Buffers that are as they were a moment ago; kept, so that no other takes their place."""

    def forget_trusted(self) -> None:
        """Buffers may have been changed since they were packed."""
        self._trusted.clear()

    def lend(self, raw: memoryview, *, in_place: bool = True, lasting: bool = True) -> Lent:
        """As a writer does."""
        if raw.nbytes < REMEMBERED or not lasting:
            return self._writer.lend(raw, in_place=in_place)
        address = address_of(np.frombuffer(raw, np.uint8))
        place = (address, raw.nbytes)
        known = self._known.get(place)
        if known is not None and self._writer.keep([known]):
            if place in self._trusted or self._is_unchanged(address, known):
                self._trusted[place] = raw
                if place not in self._held and self._writer.keep([known]):
                    self._held.add(place)
                return known
            self._writer.give_back([known.token])
            if place in self._held:
                self._held.discard(place)
                self._writer.give_back([known.token])
        lent = self._writer.lend(raw, in_place=in_place)
        self._known.pop(place, None)
        self._known[place] = lent
        self._trusted[place] = raw
        if len(self._known) > _KNOWN_MOST:
            oldest = next(iter(self._known))
            if oldest not in self._held:
                del self._known[oldest]
        return lent

    def _is_unchanged(self, address: int, lent: Lent) -> bool:
        block = self._writer._begin + lent.offset
        return block != address and not _memcmp(address, block, lent.size)

    def give_back(self, tokens: list[tuple[int, int]]) -> None:
        """As a writer does."""
        self._writer.give_back(tokens)

    def release(self) -> None:
        """Nothing of this call comes again."""
        self._writer.give_back([self._known[place].token for place in self._held])
        self._held.clear()
        self._known.clear()
        self._trusted.clear()
