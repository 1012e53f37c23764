"""Blocks of shared memory: lent, given back, used again, and never while somebody holds them."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import random
import resource
import threading
import weakref
from functools import partial
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cputrain.errors import ResourceError
from cputrain.ipc.arena import (
    MAX_FREE_BYTES,
    MIN_BLOCK_BYTES,
    ArenaFullError,
    ArenaMemory,
    BlockRef,
    Lease,
    Reader,
    Writer,
    _copy_parallel,
    _rounded_block_size,
    starting_workers,
)
from cputrain.ipc.serialization import tensor_on

PAGE = mmap.PAGESIZE


def written_bytes(memory: ArenaMemory) -> int:
    """Bytes of the file that the system has given memory to."""
    return os.fstat(memory._descriptor).st_blocks * 512


def ends(size: int = 1 << 26) -> tuple[Writer, Reader]:
    memory = ArenaMemory.create(size)
    return Writer(memory), Reader(memory)


def block(value: int, size: int = MIN_BLOCK_BYTES) -> memoryview:
    return memoryview(bytes([value]) * size)


@given(st.integers(1, 1 << 40))
def test_a_block_is_whole_pages_and_hardly_larger_than_what_it_holds(size: int) -> None:
    rounded = _rounded_block_size(size)
    assert rounded >= size
    assert rounded % PAGE == 0
    assert rounded - size < max(PAGE, size / 8 + 1)
    assert _rounded_block_size(rounded) == rounded


@given(st.integers(20, 40))
def test_there_are_eight_sizes_for_each_power_of_two(power: int) -> None:
    step = 1 << (power - 4)
    sizes = {
        _rounded_block_size(size) for size in range((1 << power) + 1, (1 << power + 1) + 1, step)
    }
    assert len(sizes) in (8, 16)
    assert max(sizes) == 1 << power + 1


def test_memory_is_as_wide_as_the_machines_and_costs_nothing_until_written() -> None:
    memory = ArenaMemory.create()
    assert memory.size == os.sysconf("SC_PHYS_PAGES") * PAGE
    assert written_bytes(memory) == 0
    writer = Writer(memory)
    writer.lend(block(1))
    assert written_bytes(memory) == MIN_BLOCK_BYTES


def test_memory_has_no_name_and_does_not_cross_an_exec() -> None:
    memory = ArenaMemory.create(PAGE)
    link = os.readlink(f"/proc/self/fd/{memory._descriptor}")
    assert link.endswith("(deleted)")
    assert not os.get_inheritable(memory._descriptor)
    memory.close_descriptor()
    memory.close_descriptor()


def test_memory_that_the_system_refuses_says_what_to_do() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    before = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(ResourceError, match=r"could not be made; .*ulimit -f unlimited"):
            ArenaMemory.create()
        assert os.listdir("/proc/self/fd") == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_memory_is_smaller_where_less_is_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, hard))
    try:
        memory = ArenaMemory.create(1 << 34)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 1 << 26 <= memory.size <= 1 << 28


def test_what_is_lent_is_read_in_place() -> None:
    writer, reader = ends()
    lent = writer.lend(block(7))
    (lease,) = reader.lease([lent])
    assert isinstance(lease, Lease)
    assert bytes(lease) == bytes(block(7))
    assert lease.base is reader._memory.map


def test_a_lease_of_the_writer_is_lent_without_a_copy() -> None:
    writer, reader = ends()
    lease = writer.lease(MIN_BLOCK_BYTES + 5)
    lease[:] = 9
    lent = writer.lend(lease.data)
    assert lent == BlockRef(*_place(lease), lease._token[1])
    assert bytes(reader.lease([lent])[0]) == b"\x09" * (MIN_BLOCK_BYTES + 5)


def _place(lease: Lease) -> tuple[int, int]:
    return lease._token[0], lease.nbytes


def test_a_part_of_a_block_is_lent_as_a_copy() -> None:
    writer, reader = ends()
    lease = writer.lease(4 * MIN_BLOCK_BYTES)
    lease[:] = np.arange(4 * MIN_BLOCK_BYTES) % 250
    lent = writer.lend(lease.data[MIN_BLOCK_BYTES : 3 * MIN_BLOCK_BYTES])
    assert lent.offset != lease._token[0]
    assert bytes(reader.lease([lent])[0]) == bytes(lease[MIN_BLOCK_BYTES : 3 * MIN_BLOCK_BYTES])


def test_a_block_is_used_again_when_its_last_holder_is_gone() -> None:
    writer, reader = ends()
    lent = writer.lend(block(1))
    leases = reader.lease([lent])
    tensors = [torch.frombuffer(leases.pop(), dtype=torch.uint8)]
    tensors.append(tensors[0][5:9].view(2, 2))
    assert reader.take_released() == []
    tensors.pop(0)
    assert reader.take_released() == []
    other = writer.lend(block(2))
    assert other.offset != lent.offset
    assert tensors[0].tolist() == [[1, 1], [1, 1]]
    tensors.pop()
    assert reader.take_released() == [(lent.offset, lent.generation)]
    writer.release([(lent.offset, lent.generation)])
    again = writer.lend(block(3))
    assert (again.offset, again.generation) == (lent.offset, lent.generation + 1)


def test_a_block_that_the_worker_keeps_is_not_used_again() -> None:
    writer, reader = ends()
    lease = writer.lease(MIN_BLOCK_BYTES)
    first = writer.lend(lease.data)
    reader.lease([first])
    writer.release(reader.take_released())
    second = writer.lend(lease.data)
    assert second == first  # the same bytes, lent once more
    reader.lease([second])
    writer.release(reader.take_released())
    assert writer.lease(MIN_BLOCK_BYTES)._token[0] != first.offset
    del lease
    assert writer.lease(MIN_BLOCK_BYTES)._token == (first.offset, first.generation + 1)


def test_what_is_given_back_too_late_or_never_lent_changes_nothing() -> None:
    writer, reader = ends()
    lent = writer.lend(block(1))
    token = (lent.offset, lent.generation)
    writer.release([token, token, (99 * PAGE, 0)])
    again = writer.lend(block(2))
    assert again.offset == lent.offset
    writer.release([token])  # of the first time
    other = writer.lend(block(3))
    assert other.offset != again.offset
    assert bytes(reader.lease([again])[0]) == bytes(block(2))


def test_free_blocks_beyond_what_is_kept_go_back_to_the_system() -> None:
    memory = ArenaMemory.create(1 << 30)
    writer = Writer(memory)
    size = MAX_FREE_BYTES // 4
    lent = [writer.lend(block(1, size)) for _ in range(6)]
    assert written_bytes(memory) == 6 * size
    writer.release([(one.offset, one.generation) for one in lent])
    writer.lend(block(1))
    assert written_bytes(memory) == MIN_BLOCK_BYTES
    assert writer._free_bytes == 0
    again = [writer.lend(block(2, size)) for _ in range(6)]
    assert {one.offset for one in again} == {one.offset for one in lent}
    writer.release([(one.offset, one.generation) for one in again])
    assert writer._free_bytes == 6 * size


def test_sizes_that_differ_a_little_share_their_blocks() -> None:
    writer, _ = ends()
    generator = random.Random(3)
    for _ in range(300):
        lent = writer.lend(block(1, generator.randrange(100_000, 120_000)))
        writer.release([(lent.offset, lent.generation)])
    assert writer._next_offset <= 4 * _rounded_block_size(120_000)


def test_an_arena_without_room_says_so_and_goes_on() -> None:
    writer, _ = ends(4 * MIN_BLOCK_BYTES)
    leases = [writer.lease(MIN_BLOCK_BYTES) for _ in range(4)]
    with pytest.raises(ArenaFullError):
        writer.lease(MIN_BLOCK_BYTES)
    with pytest.raises(ArenaFullError):
        writer.lend(block(1))
    leases.pop()
    assert writer.lend(block(1)).size == MIN_BLOCK_BYTES


def test_whoever_keeps_everything_is_given_copies() -> None:
    writer, reader = ends()
    kept = []
    for number in range(100):
        lent = writer.lend(block(number))
        kept.append(reader.lease([lent])[0])
        writer.release(reader.take_released())
    assert [bytes(one) for one in kept] == [bytes(block(number)) for number in range(100)]
    in_place = sum(isinstance(one, Lease) for one in kept)
    assert in_place == 24
    assert writer._next_offset <= (in_place + 1) * MIN_BLOCK_BYTES
    kept.clear()
    writer.release(reader.take_released())
    assert isinstance(reader.lease([writer.lend(block(1))])[0], Lease)
    assert reader._num_leased == 1


def test_leases_end_in_any_thread() -> None:
    writer, reader = ends()
    expected = set()
    threads = []
    for number in range(20):
        lent = [writer.lend(block(number)) for _ in range(3)]
        expected |= {(one.offset, one.generation) for one in lent}
        threads.append(threading.Thread(target=list.clear, args=(reader.lease(lent),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(reader.take_released()) == expected


def test_a_lease_in_a_cycle_ends_when_it_is_collected() -> None:
    writer, reader = ends()
    cycle: list[Any] = reader.lease([writer.lend(block(1))])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert len(reader.take_released()) == 1


def _child(lease: Any, go: Any, seen: Any) -> None:
    go.wait()
    seen.send(bytes(lease[:8]))


def test_what_a_forked_process_may_read_is_not_used_again() -> None:
    writer, reader = ends()
    lent = writer.lend(block(1))
    leases = reader.lease([lent])
    context = multiprocessing.get_context("fork")
    go = context.Event()
    seen, say = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(leases[0], go, say))
    child.start()
    leases.clear()
    writer.release(reader.take_released())
    for number in range(2, 9):
        lent = writer.lend(block(number))
        copy = reader.lease([lent])[0]
        assert not isinstance(copy, Lease)
        assert bytes(copy) == bytes(block(number))
        writer.release(reader.take_released())
    go.set()
    assert seen.recv() == b"\x01" * 8
    child.join()
    child.close()
    assert writer._next_offset == 2 * MIN_BLOCK_BYTES  # what is copied is used again at once


def _write_in_child(lease: Any, value: int) -> None:
    """Fork a process that writes to the lease, and wait for its end."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        lease[:] = value
        os._exit(0)
    os.waitpid(child, 0)


def test_what_a_forked_process_writes_to_an_array_is_its_own() -> None:
    writer, reader = ends()
    (lease,) = reader.lease([writer.lend(block(1))])
    _write_in_child(lease, 9)
    assert set(lease) == {1}
    lease[:] = 2
    _write_in_child(lease, 9)
    assert set(lease) == {2}


def test_what_is_written_to_an_array_after_a_fork_does_not_reach_the_child() -> None:
    writer, reader = ends()
    (lease,) = reader.lease([writer.lend(block(1))])
    context = multiprocessing.get_context("fork")
    go = context.Event()
    seen, say = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(lease, go, say))
    child.start()
    lease[:] = 5
    go.set()
    assert seen.recv() == b"\x01" * 8
    child.join()
    child.close()


def test_tensors_stay_shared_with_a_forked_process_as_torchs_are() -> None:
    writer, reader = ends()
    (lease,) = reader.lease([writer.lend(block(1))])
    tensor = tensor_on(lease)
    _write_in_child(tensor, 9)
    assert set(tensor.tolist()) == {9}


def test_a_block_that_was_kept_apart_from_a_worker_is_shared_when_lent_again() -> None:
    memory = ArenaMemory.create(1 << 26)
    writer = Writer(ArenaMemory(os.dup(memory.fileno()), memory.size))  # as in another process
    reader = Reader(memory)
    over: set[int] = set()
    (lease,) = reader.lease([writer.lend(block(1))])
    with starting_workers(partial(bool, over)):
        _write_in_child(lease, 9)
    lease[:] = 3  # stays in this process
    del lease
    over.add(1)
    writer.release(reader.take_released())
    lent = writer.lend(block(4))
    (lease,) = reader.lease([lent])
    assert writer._next_offset == _rounded_block_size(MIN_BLOCK_BYTES)  # it is the same block
    assert set(lease) == {4}
    assert not reader._private_sizes


def test_leases_are_kept_apart_though_their_reader_was_forgotten() -> None:
    writer, reader = ends()
    (lease,) = reader.lease([writer.lend(block(1))])
    reader.close()
    del reader, writer
    gc.collect()
    _write_in_child(lease, 9)
    assert set(lease) == {1}


@pytest.mark.parametrize("share", [torch.Tensor.share_memory_, ForkingPickler.dumps])
def test_a_view_lives_as_long_as_it_is_held(share: Any) -> None:
    writer, reader = ends()
    tensor = tensor_on(reader.lease([writer.lend(block(1))])[0])
    view = tensor.numpy()
    share(tensor)  # moves the tensor to other memory
    assert tensor.is_shared()
    assert not reader.take_released()
    del tensor
    gc.collect()
    assert not reader.take_released()
    assert set(view) == {1}
    del view
    assert reader.take_released()


def test_memory_reaches_another_process_by_fork_and_by_spawn() -> None:
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        memory = ArenaMemory.create(1 << 20)
        got, say = context.Pipe(duplex=False)
        child = context.Process(target=_write, args=(memory, say))
        child.start()
        lent = got.recv()
        child.join()
        assert child.exitcode == 0
        child.close()
        assert bytes(Reader(memory).lease([lent])[0]) == b"\x05" * MIN_BLOCK_BYTES


def _write(memory: ArenaMemory, say: Any) -> None:
    say.send(Writer(memory).lend(block(5)))


class ArenaMachine(RuleBasedStateMachine):
    """A worker that makes and keeps, a loader that holds and drops, tokens that come late."""

    def __init__(self) -> None:
        super().__init__()
        memory = ArenaMemory.create(1 << 22)
        # as in two processes: after a fork, the reader maps what it holds privately
        self.writer = Writer(ArenaMemory(os.dup(memory.fileno()), memory.size))
        self.reader = Reader(memory)
        self.kept: list[tuple[Lease, int]] = []
        self.sent: list[tuple[BlockRef, int]] = []
        self.held: list[tuple[Any, int]] = []
        self.late: list[tuple[int, int]] = []
        self.inherited: list[tuple[list[tuple[int, int]], set[int]]] = []
        """What each process that was forked sees, by place; and whether it has ended."""
        self.value = 0

    def places(self) -> list[tuple[int, int]]:
        return [(lease._token[0], value) for lease, value in self.held if isinstance(lease, Lease)]

    def next_value(self) -> int:
        self.value = self.value % 250 + 1
        return self.value

    @rule(size=st.sampled_from((MIN_BLOCK_BYTES, MIN_BLOCK_BYTES + 1, 3 * MIN_BLOCK_BYTES, 50_000)))
    def make(self, size: int) -> None:
        try:
            lease = self.writer.lease(size)
        except ArenaFullError:
            return
        value = self.next_value()
        lease[:] = value
        self.kept.append((lease, value))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        lease, value = data.draw(st.sampled_from(self.kept))
        self.sent.append((self.writer.lend(lease.data), value))

    @rule(size=st.sampled_from((MIN_BLOCK_BYTES, 2 * MIN_BLOCK_BYTES, 50_000)))
    def send_a_copy(self, size: int) -> None:
        value = self.next_value()
        try:
            self.sent.append((self.writer.lend(block(value, size)), value))
        except ArenaFullError:
            return

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def worker_forgets(self, data: st.DataObject) -> None:
        self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))

    @precondition(lambda self: self.sent)
    @rule()
    def receive(self) -> None:
        sent, self.sent = self.sent[:3], self.sent[3:]
        leases = self.reader.lease([lent for lent, _ in sent])
        self.held += zip(leases, (value for _, value in sent), strict=True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def loader_forgets(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule()
    def collect(self) -> None:
        self.late += self.reader.take_released()

    @rule()
    def release(self) -> None:
        self.writer.release(self.late)
        self.late = []

    @rule(rare=st.integers(0, 9))
    def fork(self, rare: int) -> None:
        if rare == 0:
            self.reader._fence_fork()
            self.inherited.append((self.places(), set()))

    @rule()
    def fork_workers(self) -> None:
        ended: set[int] = set()
        self.reader._fence_fork(partial(bool, ended))
        self.inherited.append((self.places(), ended))

    @precondition(lambda self: self.inherited)
    @rule(data=st.data())
    def workers_end(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.inherited) - 1))
        self.inherited.pop(number)[1].add(1)

    @invariant()
    def every_holder_sees_its_own(self) -> None:
        for lease, value in (*self.kept, *self.held):
            assert lease[0] == lease[-1] == value
        for held, _ in self.inherited:
            for place, value in held:
                assert self.reader._memory.map[place] == value

    @invariant()
    def blocks_do_not_overlap(self) -> None:
        spans = sorted((one.offset, one.offset + one.size) for one in self.writer._blocks.values())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))

    @invariant()
    def free_blocks_have_no_holder(self) -> None:
        free = [one for blocks in self.writer._free.values() for one in blocks]
        assert len({one.offset for one in free}) == len(free)
        assert all(one.num_holders == 0 for one in free)
        hollow = self.writer._trimmed
        assert self.writer._free_bytes == sum(b.size for b in free if b.offset not in hollow)


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def test_what_workers_inherit_is_used_again_when_they_are_over() -> None:
    writer, reader = ends()
    over: set[int] = set()
    tokens = []
    leases = []
    for number in range(3):
        lent = writer.lend(block(number))
        tokens.append((lent.offset, lent.generation))
        leases += reader.lease([lent])
    leases.pop(0)
    with starting_workers(partial(bool, over)):
        for _ in range(2):
            os.waitpid(_fork_and_leave(), 0)
    later = writer.lend(block(9))
    leases += reader.lease([later])
    leases.pop(0)
    leases.pop()
    assert not reader._was_forked
    assert reader.take_released() == [tokens[0], (later.offset, later.generation)]
    over.add(1)
    assert reader.take_released() == [tokens[1]]
    leases.clear()
    assert reader.take_released() == [tokens[2]]
    assert reader._num_leased == 0
    assert reader._fences == []


def test_workers_that_are_over_are_forgotten_whatever_they_have_inherited() -> None:
    writer, reader = ends()
    leases = reader.lease([writer.lend(block(1))])
    events = [threading.Event() for _ in range(3)]
    references = [weakref.ref(event) for event in events]
    while events:
        with starting_workers(events[-1].is_set):
            os.waitpid(_fork_and_leave(), 0)
        events.pop().set()
    gc.collect()
    assert sum(reference() is not None for reference in references) == 1  # the latest
    reader.close()
    gc.collect()
    assert not any(reference() for reference in references)
    assert set(leases[0]) == {1}


def test_starting_workers_is_told_by_thread() -> None:
    _, reader = ends()
    with starting_workers(bool):
        thread = threading.Thread(target=lambda: os.waitpid(_fork_and_leave(), 0))
        thread.start()
        thread.join()
    assert reader._was_forked


def _fork_and_leave() -> int:
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0)
    return child


def test_each_copy_function_has_a_thread() -> None:
    """They copy at the same time; this thread runs the first."""
    together = threading.Barrier(3)
    threads: set[int] = set()

    def copy(_: slice) -> None:
        together.wait(10)
        threads.add(threading.get_ident())

    _copy_parallel([slice(0, 1), slice(1, 2), slice(2, 3)], copy, copy, copy)
    assert len(threads) == 3
    assert threading.get_ident() in threads
