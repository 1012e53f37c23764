"""A call of a pool's method, and the tasks it is cut into."""

from __future__ import annotations

import pickle
import threading
from functools import partial
from multiprocessing import resource_sharer
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cputrain.errors import UsageError
from cputrain.pool.packets import LONGEST, Kind, Part, TaskPacket, points_to
from cputrain.shared import Lent, Writer, pack
from cputrain.shared.arena import address_of
from cputrain.shared.packing import is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED = 1 << 20
"""Bytes from which on a buffer is looked for among those that a call has sent before."""

SMALL = 200_000
"""Nanoseconds. A task that takes less costs about as much to send as to do."""

_BUNDLE_TIME = 500_000
"""Nanoseconds of small tasks that are sent together."""

_BUNDLE_MOST = 64

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
        same_items: bool = True,
        bundles: bool = False,
    ) -> None:
        self.result = result
        """Where what comes of tasks goes, as one of multiprocessing's pool."""
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
        self._same_items = same_items
        """Whether a buffer that comes again is as it was; not so while an iterator makes them."""
        self._packed: Part | None = None
        self._memo: _Memo | None = None

    def function_in(self, writer: Writer) -> tuple[Part, bool]:
        """The function, packed once if that will do, and whether it does.

        Its blocks have one more holder.
        """
        if self._packed is not None:
            writer.keep(self._packed.lent)
            return self._packed, True
        part, lasts = packed(self.function, self.memo_in(writer))
        if len(part.data) > _IN_PLACE:
            try:
                part = Part(b"", [*part.lent, writer.lend(memoryview(part.data))])
            except BaseException:
                writer.give_back(tokens_of(part.lent))
                raise
        if lasts:
            self._packed = part
            writer.keep(part.lent)
        return part, lasts

    def arguments_in(self, writer: Writer, payload: Any) -> tuple[Part, bool]:
        """The arguments of one task, and whether they can be sent again."""
        return packed(payload, self.memo_in(writer) if self._same_items else writer)

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
        if self._packed is not None:
            writer.give_back(tokens_of(self._packed.lent))
            self._packed = None
        if self._memo is not None:
            self._memo.release()
            self._memo = None


class Task:
    """A part of a call: what one worker does before it tells of it."""

    __slots__ = (
        "arguments",
        "attempts",
        "bytes",
        "call",
        "failure",
        "first",
        "index",
        "lasts",
        "lent",
        "packet",
        "part",
        "ticket",
    )

    def __init__(self, call: Call, index: int, first: int, arguments: Any) -> None:
        self.call = call
        self.index = index
        self.first = first
        """The number of its first item."""
        self.arguments = arguments
        self.part: Part | None = None
        """The arguments, once they have been packed."""
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

    def prepare(self, writer: Writer) -> Part:
        """Its arguments, packed as they are now; their blocks are held until `release`."""
        if self.failure is not None:
            raise self.failure
        if self.part is None:
            self.part, self.lasts = self.call.arguments_in(writer, self.arguments)
            self.lent = list(self.part.lent)
            if self.lasts:
                self.arguments = None
        return self.part

    def pack(self, writer: Writer) -> bytearray:
        """Its packet, made once."""
        if self.packet is None:
            self._seal(writer, self.call.kind, self.prepare(writer))
        assert self.packet is not None
        return self.packet

    def _seal(self, writer: Writer, kind: Kind, arguments: Part) -> None:
        function, lasts = self.call.function_in(writer)
        lent = list(function.lent)
        try:
            timed = self.call.timeout is not None
            packet = TaskPacket(0, kind, timed, function, arguments).encode()
            if len(packet) > LONGEST:
                lent.append(writer.lend(memoryview(packet), in_place=False))
                packet = points_to(lent[-1])
        except BaseException:
            writer.give_back(tokens_of(lent))
            raise
        self.lent += lent
        self.lasts = self.lasts and lasts
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

    def each(self) -> list[Task]:
        """The tasks that this stands for."""
        return [self]

    def release(self, writer: Writer) -> None:
        """It has ended; only what a worker has kept is still in use."""
        if self.lent:
            writer.give_back(tokens_of(self.lent))
            self.lent = []
        self.packet = self.part = self.arguments = None

    def named(self, item: int = 0) -> str:
        """As messages call it."""
        if self.call.kind is Kind.CALL:
            return self.call.name
        return f"item {self.first + item} of {self.call.name}"


class Bundle(Task):
    """Several small tasks of one item each, on their way together."""

    __slots__ = ("revoked", "tasks")

    def __init__(self, tasks: list[Task]) -> None:
        first = tasks[0]
        super().__init__(first.call, first.index, first.first, None)
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
        if all(task.part is None for task in self.tasks):
            items = [task.arguments[0] for task in self.tasks]
            if all(map(is_atom, items)):
                return Kind.ATOMS, Part(pickle.dumps(items, 5), [])
        parts = [task.prepare(writer) for task in self.tasks]
        data = pickle.dumps([(bytes(part.data), len(part.lent)) for part in parts], 5)
        return Kind.APART, Part(data, [one for part in parts for one in part.lent])

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


def packed(thing: Any, writer: Writer | _Memo) -> tuple[Part, bool]:
    """Something packed, and whether it can be unpacked more than once.

    What multiprocessing sends by a descriptor is handed out by a server, to whoever asks first.
    """
    before = _handed_out()
    data, lent = pack(thing, writer, sharing=True)
    return Part(data, lent), _handed_out() == before


def _handed_out() -> int:
    return int(resource_sharer._resource_sharer._key)


def tokens_of(lent: list[Lent]) -> list[tuple[int, int]]:
    """As blocks are given back."""
    return [one.token for one in lent]


class _Memo:
    """Large buffers that a call has sent: what comes again is not copied again.

    The first time a buffer's block is merely known; if it comes again it is held until the call
    ends. So a call with many different buffers holds no more of them than are on their way.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[tuple[int, int], tuple[Lent, memoryview]] = {}
        """By address and length; the buffer is kept, so that no other can take its place."""
        self._held: set[tuple[int, int]] = set()

    def lend(self, raw: memoryview, *, in_place: bool = True, lasting: bool = True) -> Lent:
        """As a writer does."""
        if raw.nbytes < REMEMBERED or not lasting:
            return self._writer.lend(raw, in_place=in_place)
        place = (address_of(np.frombuffer(raw, np.uint8)), raw.nbytes)
        known = self._known.get(place)
        if known is not None and self._writer.keep([known[0]]):
            if place not in self._held and self._writer.keep([known[0]]):
                self._held.add(place)
            return known[0]
        lent = self._writer.lend(raw, in_place=in_place)
        self._known[place] = (lent, raw)
        if known is not None and self._writer.keep([lent]):
            self._held.add(place)
        return lent

    def give_back(self, tokens: list[tuple[int, int]]) -> None:
        """As a writer does."""
        self._writer.give_back(tokens)

    def release(self) -> None:
        """Nothing of this call comes again."""
        self._writer.give_back(tokens_of([self._known[place][0] for place in self._held]))
        self._held.clear()
        self._known.clear()
