"""All-reduce among the ranks of one node, in shared memory.

Nothing has a name in the file system: the memory is a memfd that is passed from rank to rank, and
the barrier uses abstract Unix sockets. So killed ranks leave nothing behind, and a rank's exit
closes its sockets, which the ranks that wait for it notice at once.
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

CACHE_LINE_BYTES = 64
"""Bytes of a cache line; no two ranks write to the same one."""

CONNECT_TIMEOUT_S = 60.0
"""Seconds for all ranks to connect."""

PIECE_ELEMENTS = 1 << 14
"""Elements that torch adds in one thread; it would divide a larger operation among threads."""

GREETING = struct.Struct("!16sII")
"""First message of a connection: the group's secret, the sender's rank, the barrier round."""


def connect_node_group(group: Any, timeout_s: float) -> NodeGroup | None:
    """Connect the ranks of a process group, if all of them can share memory; a collective call.

    Args:
        timeout_s: Seconds that a rank waits for the others in an all-reduce.

    Returns:
        The group, or None in every rank if some ranks cannot share memory.
    """
    rank, num_ranks = group.rank(), group.size()
    try:
        listener, address = _listen()
        domain = _memory_domain()
    except OSError:
        listener, address, domain = None, b"", ""
    members: list[Any] = [None] * num_ranks
    distributed.all_gather_object(
        members,
        (domain, address, secrets.token_bytes(16), sorted(os.sched_getaffinity(0))),
        group=group,
    )
    node_group = None
    if listener is not None:
        with listener:
            if all(member[0] == domain for member in members):
                with contextlib.suppress(OSError, RankGone):
                    node_group = NodeGroup(
                        rank, listener, [member[1] for member in members], members[0][2], timeout_s,
                        has_own_cpus=_are_disjoint([member[3] for member in members]),
                    )  # fmt: skip
    are_all_connected = torch.tensor([node_group is not None], dtype=torch.int32)
    distributed.all_reduce(are_all_connected, distributed.ReduceOp.MIN, group=group)
    if are_all_connected.item() and node_group is not None:
        return node_group
    if node_group is not None:
        node_group.close()
    return None


class NodeGroup:
    """Connected ranks of one node with shared memory: a slot for each rank, and one for the sums.

    Args:
        addresses: Addresses of the ranks' listening sockets, by rank.
        secret: Bytes that tell this group's connections from those of other programs.
        timeout_s: Seconds that this rank waits for another one.
        has_own_cpus: Whether the ranks' CPU sets are disjoint. If not, each rank adds in one
            thread: threads of several ranks on the same CPUs wait for one another at the end of
            torch's parallel regions, which took 30 ms for 1 MiB.
    """

    def __init__(
        self, rank: int, listener: socket.socket, addresses: list[bytes], secret: bytes,
        timeout_s: float, *, has_own_cpus: bool,
    ) -> None:  # fmt: skip
        self._has_own_cpus = has_own_cpus
        self._rank, self._num_ranks = rank, len(addresses)
        self._timeout_s = timeout_s
        self._successors: list[tuple[int, socket.socket]] = []
        self._predecessors: list[tuple[int, socket.socket]] = []
        self._slot_bytes = 0
        self._slots: list[torch.Tensor] = []
        self._slot_views: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._failure = ""
        try:
            self._connect(listener, addresses, secret)
            self._allocate_slots(mmap.PAGESIZE)  # fails now if the memory cannot be shared
        except BaseException:
            self.close()
            raise
        for _, connection in (*self._successors, *self._predecessors):
            connection.settimeout(timeout_s)
        _open_groups.add(self)

    def all_reduce(self, tensor: torch.Tensor, divisor: int = 1) -> None:
        """Replace each rank's tensor by the sum over all ranks; a collective call.

        Each rank adds a chunk of the tensors, always in the order of ranks: the results are equal
        to the bit.

        Args:
            tensor: Contiguous, of the same shape and dtype in every rank.
            divisor: Number that the sum is divided by.

        Raises:
            RankGone: A rank has exited or timed out; no later all-reduce of this group succeeds.
        """
        if self._failure:
            raise RankGone("the gradient all-reduce", f"has failed before: {self._failure}")
        try:
            self._all_reduce(tensor.view(-1), divisor)
        except BaseException as error:  # the ranks' tensors may differ now: end the group
            self._failure = str(error) or type(error).__name__
            self.close()
            raise

    def close(self) -> None:
        """Close the connections, which ends the all-reduce of ranks that wait for this one."""
        for _, connection in (*self._successors, *self._predecessors):
            connection.close()
        self._failure = self._failure or "the group was closed"

    def _all_reduce(self, flat: torch.Tensor, divisor: int) -> None:
        """Copy the tensor to this rank's slot, add this rank's chunk, and copy the sums back."""
        (*slots, sums), num_elements = self._slots_for(flat), flat.numel()
        if flat.dtype == torch.float16:  # divide first: the sum could overflow
            flat.div_(divisor)
            divisor = 1
        line = CACHE_LINE_BYTES // flat.element_size()
        chunk = -(-num_elements // (self._num_ranks * line)) * line
        begin, end = (min(rank * chunk, num_elements) for rank in (self._rank, self._rank + 1))
        self._copy(flat, slots[self._rank])
        self._barrier()  # every slot is written, and no rank reads the last call's sums any more
        step = max(chunk, 1) if self._has_own_cpus else PIECE_ELEMENTS
        for at in range(begin, end, step):
            piece = slice(at, min(at + step, end))
            sum_ = sums[piece]
            torch.add(slots[0][piece], slots[1][piece], out=sum_)
            for slot in slots[2:]:
                sum_.add_(slot[piece])
            if divisor != 1:
                sum_.div_(divisor)
        self._barrier()
        self._copy(sums, flat)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a tensor, in one thread if ranks share CPUs."""
        if self._has_own_cpus:
            target.copy_(source)
        else:
            np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())

    def _slots_for(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the ranks' slots and the slot of the sums, as tensors of this size and dtype."""
        key = flat.numel(), flat.dtype
        if key not in self._slot_views:
            size = flat.numel() * flat.element_size()
            if size > self._slot_bytes:
                self._allocate_slots(size)
            self._slot_views[key] = [slot[:size].view(flat.dtype) for slot in self._slots]
        return self._slot_views[key]

    def _allocate_slots(self, size: int) -> None:
        """Replace the shared memory by slots of at least `size` bytes; a collective call."""
        self._barrier()
        self._slot_views.clear()
        self._slot_bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        total_bytes = self._slot_bytes * (self._num_ranks + 1)
        if self._rank == 0:
            descriptor = _create_memory(total_bytes)
        else:
            source, predecessor = self._predecessors[0]
            with self._rank_errors(source, source):
                _, (descriptor,), _, _ = socket.recv_fds(predecessor, 1, 1)
        try:
            if self._rank + 1 < self._num_ranks:
                target, successor = self._successors[0]
                with self._rank_errors(target, target):
                    socket.send_fds(successor, [b"m"], [descriptor])
            arena = torch.frombuffer(mmap.mmap(descriptor, total_bytes), dtype=torch.uint8)
        finally:
            os.close(descriptor)
        self._slots = list(arena.view(self._num_ranks + 1, self._slot_bytes))
        self._barrier()

    def _barrier(self) -> None:
        """Wait for all ranks: a dissemination barrier, whose rounds double the ranks known of."""
        for (target, successor), (source, predecessor) in zip(
            self._successors, self._predecessors, strict=True
        ):
            with self._rank_errors(target, source):
                successor.send(b"x", socket.MSG_NOSIGNAL)
                (_,) = predecessor.recv(1)

    @contextlib.contextmanager
    def _rank_errors(self, target: int, source: int) -> Iterator[None]:
        """Raise RankGone for an error in sending to `target` or receiving from `source`."""
        try:
            yield
        except TimeoutError:
            raise RankGone(
                "the gradient all-reduce", f"must complete within {self._timeout_s:g} s",
                found=f"that rank {source} of this node has not reached it",
                do="Find out why, or pass a longer timeout to init_process_group.",
            ) from None  # fmt: skip
        except (ConnectionError, ValueError) as error:  # ValueError: nothing to unpack, closed
            raise RankGone(
                "the gradient all-reduce", "needs every rank of this node",
                found=f"that rank {source if isinstance(error, ValueError) else target} has exited",
                do="See that rank's output for the reason.",
            ) from None  # fmt: skip

    def _connect(self, listener: socket.socket, addresses: list[bytes], secret: bytes) -> None:
        """Connect to the ranks at distances 1, 2, 4, …, and accept as many connections."""
        listener.settimeout(CONNECT_TIMEOUT_S)
        steps = [1 << index for index in range((self._num_ranks - 1).bit_length())]
        for index, step in enumerate(steps):
            target = (self._rank + step) % self._num_ranks
            successor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._successors.append((target, successor))
            successor.settimeout(CONNECT_TIMEOUT_S)
            successor.connect(addresses[target])
            successor.sendall(GREETING.pack(secret, self._rank, index))
        accepted: dict[int, tuple[int, socket.socket]] = {}
        while len(accepted) < len(steps):
            predecessor, _ = listener.accept()
            predecessor.settimeout(CONNECT_TIMEOUT_S)
            message = predecessor.recv(GREETING.size, socket.MSG_WAITALL)
            greeting = GREETING.unpack(message) if len(message) == GREETING.size else (b"", 0, 0)
            if secrets.compare_digest(greeting[0], secret):
                accepted[greeting[2]] = greeting[1], predecessor
            else:
                predecessor.close()
        self._predecessors = [accepted[index] for index in range(len(steps))]


_open_groups: weakref.WeakSet[NodeGroup] = weakref.WeakSet()


def _close_inherited() -> None:
    """Close the parent's connections in a forked process, where they could outlive the parent."""
    for group in list(_open_groups):
        group.close()


os.register_at_fork(after_in_child=_close_inherited)


def _create_memory(size: int) -> int:
    """Create a memfd of `size` bytes and return its descriptor."""
    descriptor = create_memfd()
    os.truncate(descriptor, size)
    return descriptor


def _are_disjoint(masks: list[list[int]]) -> bool:
    """Return whether no CPU is in two of the masks."""
    cpus = [cpu for mask in masks for cpu in mask]
    return len(cpus) == len(set(cpus))


def _listen() -> tuple[socket.socket, bytes]:
    """Return a listening abstract socket and its random address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address = b"\0cputrain-" + secrets.token_hex(16).encode()
    try:
        listener.bind(address)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener, address


def _memory_domain() -> str:
    """Return a string that is equal in processes that can pass descriptors to one another.

    They have the same boot, network namespace and user.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
