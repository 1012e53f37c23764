"""Ranks of one node, which add up tensors in memory that they share.

Nothing has a name in the file system: the memory is a memfd, handed from rank to rank, and the
sockets by which ranks wait for one another are abstract ones. So nothing is left behind, however
they end, and a rank that dies is known at once by those that wait for it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import weakref

import numpy as np
import torch
from torch import distributed

from cputrain.errors import RankGone
from cputrain.ipc import create_memfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LINE = 64
"""Bytes of a cache line; parts of a tensor that are written by different ranks do not share one."""

CONNECTING = 60.0
"""Seconds for all to be connected."""

PIECE = 1 << 14
"""Elements that are added up at once where only one thread is to do it: torch divides more."""

HELLO = struct.Struct("!16sII")
"""What a connection begins with: the group's secret, who it is, and which of its connections."""


def neighbours(group: Any, timeout: float) -> Neighbours | None:
    """The ranks of a process group, where all of them are on this node. All must call it."""
    rank, count = group.rank(), group.size()
    try:
        listener, address = _listener()
        place = _place()
    except OSError:
        listener, address, place = None, b"", ""
    found: list[Any] = [None] * count
    distributed.all_gather_object(
        found,
        (place, address, secrets.token_bytes(16), sorted(os.sched_getaffinity(0))),
        group=group,
    )
    made = None
    if listener is not None:
        with listener:
            if all(one[0] == place for one in found):
                with contextlib.suppress(OSError, RankGone):
                    made = Neighbours(
                        rank, listener, [one[1] for one in found], found[0][2], timeout,
                        alone=_are_apart([one[3] for one in found]),
                    )  # fmt: skip
    every = torch.tensor([made is not None], dtype=torch.int32)
    distributed.all_reduce(every, distributed.ReduceOp.MIN, group=group)
    if every.item() and made is not None:
        return made
    if made is not None:
        made.close()
    return None


class Neighbours:
    """Them, connected, and the memory."""

    def __init__(
        self, rank: int, listener: socket.socket, addresses: list[bytes], secret: bytes,
        timeout: float, *, alone: bool,
    ) -> None:  # fmt: skip
        """`alone`: no rank computes on another one's CPUs. Else one thread of each adds up: all of
        them, waiting for one another, took 30 ms for 1 MiB where they take a tenth of one alone."""
        self._alone = alone
        self._rank, self._count = rank, len(addresses)
        self._timeout = timeout
        self._after: list[tuple[int, socket.socket]] = []
        self._before: list[tuple[int, socket.socket]] = []
        self._room = 0
        self._slots: list[torch.Tensor] = []
        self._known: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._why = ""
        try:
            self._connect(listener, addresses, secret)
            self._make_room(mmap.PAGESIZE)  # whether it can be had is known now
        except BaseException:
            self.close()
            raise
        for _, one in (*self._after, *self._before):
            one.settimeout(timeout)
        _all.add(self)

    def add_up(self, tensor: torch.Tensor, divisor: int = 1) -> None:
        """Put the sum over all ranks, divided, into each one's. All must call it, in one order.

        Each rank adds up a part, always in the order of ranks: all have the same to the bit.
        """
        if self._why:
            raise RankGone("the exchange of gradients", f"has ended: {self._why}")
        try:
            self._add_up(tensor.view(-1), divisor)
        except BaseException as error:  # others cannot know what was done: nobody goes on
            self._why = str(error) or type(error).__name__
            self.close()
            raise

    def close(self) -> None:
        """Leave; those that wait for this rank are told by that."""
        for _, one in (*self._after, *self._before):
            one.close()
        self._why = self._why or "it was closed"

    def _add_up(self, flat: torch.Tensor, divisor: int) -> None:
        (*slots, sums), count = self._of(flat), flat.numel()
        if flat.dtype == torch.float16:  # whose sums may be too large for it
            flat.div_(divisor)
            divisor = 1
        line = LINE // flat.element_size()
        each = -(-count // (self._count * line)) * line
        begin, end = (min(rank * each, count) for rank in (self._rank, self._rank + 1))
        self._copy(flat, slots[self._rank])
        self._wait()  # all is there; and nobody reads the sums of the last exchange any more
        step = max(each, 1) if self._alone else PIECE
        for at in range(begin, end, step):
            piece = slice(at, min(at + step, end))
            sum_ = sums[piece]
            torch.add(slots[0][piece], slots[1][piece], out=sum_)
            for slot in slots[2:]:
                sum_.add_(slot[piece])
            if divisor != 1:
                sum_.div_(divisor)
        self._wait()
        self._copy(sums, flat)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self._alone:
            target.copy_(source)
        else:
            np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())

    def _of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Each rank's part of the memory as a tensor of that form, and that of the sums."""
        key = flat.numel(), flat.dtype
        if key not in self._known:
            size = flat.numel() * flat.element_size()
            if size > self._room:
                self._make_room(size)
            self._known[key] = [slot[:size].view(flat.dtype) for slot in self._slots]
        return self._known[key]

    def _make_room(self, size: int) -> None:
        """Memory for so many bytes of each; what was there is not used any more."""
        self._wait()
        self._known.clear()
        self._room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = self._room * (self._count + 1)
        if self._rank == 0:
            memory = _memory(whole)
        else:
            of, before = self._before[0]
            with self._talking(of, of):
                _, (memory,), _, _ = socket.recv_fds(before, 1, 1)
        try:
            if self._rank + 1 < self._count:
                to, after = self._after[0]
                with self._talking(to, to):
                    socket.send_fds(after, [b"m"], [memory])
            every = torch.frombuffer(mmap.mmap(memory, whole), dtype=torch.uint8)
        finally:
            os.close(memory)
        self._slots = list(every.view(self._count + 1, self._room))
        self._wait()

    def _wait(self) -> None:
        """Until all are here: each round, twice as many are known of to have come."""
        for (to, after), (of, before) in zip(self._after, self._before, strict=True):
            with self._talking(to, of):
                after.send(b"x", socket.MSG_NOSIGNAL)
                (_,) = before.recv(1)

    @contextlib.contextmanager
    def _talking(self, to: int, of: int) -> Iterator[None]:
        """With one rank, and hearing of one; both may have ended."""
        try:
            yield
        except TimeoutError:
            raise RankGone(
                "the exchange of gradients", f"must be over within {self._timeout:g} s",
                found=f"rank {of} of this node, which has not come",
                do="Give init_process_group a longer timeout, or see why it does not.",
            ) from None  # fmt: skip
        except (ConnectionError, ValueError) as error:  # nothing to be unpacked: it has closed
            raise RankGone(
                "the exchange of gradients", "needs every rank of this node",
                found=f"that rank {of if isinstance(error, ValueError) else to} has ended",
                do="What it printed says why.",
            ) from None  # fmt: skip

    def _connect(self, listener: socket.socket, addresses: list[bytes], secret: bytes) -> None:
        listener.settimeout(CONNECTING)
        steps = [1 << number for number in range((self._count - 1).bit_length())]
        for number, step in enumerate(steps):
            to = (self._rank + step) % self._count
            after = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._after.append((to, after))
            after.settimeout(CONNECTING)
            after.connect(addresses[to])
            after.sendall(HELLO.pack(secret, self._rank, number))
        came: dict[int, tuple[int, socket.socket]] = {}
        while len(came) < len(steps):
            before, _ = listener.accept()
            before.settimeout(CONNECTING)
            hello = before.recv(HELLO.size, socket.MSG_WAITALL)
            said = HELLO.unpack(hello) if len(hello) == HELLO.size else (b"", 0, 0)
            if secrets.compare_digest(said[0], secret):
                came[said[2]] = said[1], before
            else:
                before.close()
        self._before = [came[number] for number in range(len(steps))]


_all: weakref.WeakSet[Neighbours] = weakref.WeakSet()


def _leave() -> None:
    """In a process that was forked: the connections are its parent's, which ends with them."""
    for one in list(_all):
        one.close()


os.register_at_fork(after_in_child=_leave)


def _memory(size: int) -> int:
    """A descriptor of so many bytes without a name."""
    memory = create_memfd()
    os.truncate(memory, size)
    return memory


def _are_apart(masks: list[list[int]]) -> bool:
    """Whether no CPU is in two of them."""
    every = [cpu for mask in masks for cpu in mask]
    return len(every) == len(set(every))


def _listener() -> tuple[socket.socket, bytes]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address = b"\0cputrain-" + secrets.token_hex(16).encode()
    try:
        listener.bind(address)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener, address


def _place() -> str:
    """What is the same for all who can share memory by such sockets."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
