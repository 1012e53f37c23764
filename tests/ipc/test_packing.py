"""Batches as bytes and back, and what carries the bytes: messages, pipes and payloads."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.data.payload import WorkerPayload
from cputrain.data.results import Result
from cputrain.ipc.arena import MIN_BLOCK_BYTES, ArenaMemory, BlockRef, Reader, Writer
from cputrain.ipc.links import Inbox, Outbox, pipe
from cputrain.ipc.serialization import pack, unpack
from tests.data.alike import assert_alike


class Both(NamedTuple):
    """The two ends of an arena, in one process."""

    writer: Writer
    reader: Reader

    def carry(self, thing: Any) -> tuple[Any, list[BlockRef]]:
        """What comes out where `thing` goes in, and the blocks it went through."""
        data, lent = pack(thing, self.writer)
        return unpack(data, self.reader.lease(lent)), lent


@pytest.fixture
def both() -> Both:
    memory = ArenaMemory.create(1 << 28)
    return Both(Writer(memory), Reader(memory))


DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.uint16,
    torch.uint64,
    torch.float8_e4m3fn,
)

WIDE = MIN_BLOCK_BYTES // 8
"""Numbers that make a row large enough for the arena, whatever their type."""


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Different numbers of this type."""
    if not shape or 0 not in shape:
        return (torch.arange(int(np.prod(shape))) % 101).to(dtype).view(shape)
    return torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 3, 2 * WIDE * 8])
def test_every_type_of_number_comes_back(both: Both, dtype: torch.dtype, rows: int) -> None:
    sent = numbers(dtype, rows, 4)
    got, lent = both.carry(sent)
    assert_alike(got, sent)
    assert bool(lent) == (sent.nbytes >= MIN_BLOCK_BYTES)


SHAPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda t: t,
    "without dimensions": lambda t: t[3, 1, 2, 5],
    "transposed": lambda t: t.transpose(0, 3),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "one channel, channels last": lambda t: t[:, :1].contiguous(memory_format=torch.channels_last),
    "one row with a stride of its own": lambda t: t.as_strided((1, 5), (77, 1)),
    "one number with a stride of its own": lambda t: t.view(-1)[3:4].as_strided((1,), (2,), 3),
    "one number without strides": lambda t: t[0, 0, 0, :1].expand(1).as_strided((1, 1), (0, 0), 7),
    "a column": lambda t: t.flatten(1)[:, 5],
    "two columns": lambda t: t.flatten(1)[:, 5:7],
    "nothing, with strides": lambda t: t.as_strided((0, 4), (9, 2)),
    "expanded": lambda t: t[:1, :1].expand(9, 9, -1, -1),
    "expanded from one number": lambda t: t[0, 0, 0, 0].expand(50, 60),
    "every second column": lambda t: t[..., ::2],
    "rows in the middle": lambda t: t[3:7],
    "overlapping windows": lambda t: t.view(-1).unfold(0, 9, 2),
    "empty in the middle": lambda t: t[:, 2:2],
    "flipped": lambda t: t.flip(0),
    "a view of another type": lambda t: t.view(torch.int16),
}


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("side", [6, 40])
def test_every_layout_comes_back(both: Both, name: str, side: int) -> None:
    sent = SHAPED[name](torch.arange(12 * 3 * side * side, dtype=torch.int32).view(12, 3, side, -1))
    got, _ = both.carry(sent)
    assert_alike(got, sent)
    assert not got._is_view()


def test_a_small_part_of_something_large_goes_alone(both: Both) -> None:
    large = torch.arange(1 << 20)
    few = large[:: 1 << 15]
    many = large[::64]  # with its strides, it would touch as many pages as all of it
    for part, expected in ((few, few), (many, many.contiguous())):
        data, lent = pack(part, both.writer)
        assert len(data) + sum(one.size for one in lent) < large.nbytes // 32
        assert_alike(unpack(data, both.reader.lease(lent)), expected)


def test_tensors_on_the_same_memory_stay_on_the_same_memory(both: Both) -> None:
    whole = torch.arange(4 * WIDE, dtype=torch.int64)
    got, lent = both.carry([whole, whole[5:9], whole.view(torch.int32), {"again": whole}])
    assert len(lent) == 1
    got[0][6] = -1
    assert got[1].tolist() == [5, -1, 7, 8]
    assert got[2][12] == -1
    assert got[3]["again"] is got[0]


def views_of(whole: torch.Tensor, seed: int) -> list[torch.Tensor]:
    """Return some views at random, of which several overlap."""
    random = np.random.default_rng(seed)
    views = []
    for _ in range(random.integers(2, 9)):
        begin = int(random.integers(0, len(whole) - 1))
        end = int(random.integers(begin + 1, len(whole) + 1))
        views.append(whole[begin : end : int(random.choice([1, 1, 1, 2]))])
    if views[0].stride() == (1,) and random.random() < 0.5:
        views[0] = views[0].view(torch.uint8)
    return views


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("length", [20, 3 * WIDE])
def test_views_that_overlap_go_on_overlapping(both: Both, seed: int, length: int) -> None:
    sent = views_of(torch.arange(length, dtype=torch.int32), seed)
    got, lent = both.carry(sent)
    assert_alike(got, sent)
    assert sum(one.size for one in lent) <= 4 * length + 16 * len(lent)  # nothing goes twice
    for mine, theirs in zip(got, sent, strict=True):  # a write to one shows wherever it did
        mine[len(mine) // 2] = 77
        theirs[len(theirs) // 2] = 77
        assert_alike(got, sent)


def test_a_column_of_a_table_beside_it_goes_on_sharing(both: Both) -> None:
    for order in (slice(None), slice(None, None, -1)):
        table = torch.arange(3 * WIDE).view(-1, 16)
        sent = [table, table[:, 3], table[5:9]][order]
        got, lent = both.carry(sent)
        assert len(lent) == 1
        got[1][6] = -1
        sent[1][6] = -1
        assert_alike(got, sent)


def test_rows_of_a_table_kept_by_columns_go_alone(both: Both) -> None:
    table = torch.arange(16 * WIDE).view(16, -1).T
    sent = [table[row] for row in range(0, len(table), 99)]
    data, lent = pack(sent, both.writer)
    assert len(data) + sum(one.size for one in lent) < table.nbytes // 8
    assert_alike(unpack(data, both.reader.lease(lent)), sent)


@pytest.mark.parametrize("order", [(5, 10), (10, 5), (5, 10, 5, 7)])
@pytest.mark.parametrize("factor", [1, WIDE])
def test_memory_that_begins_at_the_same_place_may_end_elsewhere(
    both: Both, order: tuple[int, ...], factor: int
) -> None:
    array = np.arange(10 * factor)
    sent = [torch.from_numpy(array[: count * factor]) for count in order]
    got, _ = both.carry(sent)
    assert_alike(got, sent)


def test_arrays_come_back_as_a_pipe_would_bring_them(both: Both) -> None:
    array = np.arange(6 * WIDE, dtype=np.float32).reshape(6, -1)
    fixed = array.copy()
    fixed.flags.writeable = False
    sent = [
        array,
        array.T,
        array[::2, ::3],
        np.broadcast_to(array[0], (3, WIDE)),
        fixed,
        fixed[:1, :3],
        np.frombuffer(b"12345678" * WIDE, np.int16),
        np.array(["text", None], dtype=object),
        np.array(["a", "bc"]),
        np.zeros((0, 3)),
        np.float32(3),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ]
    got, _ = both.carry(sent)
    expected = pickle.loads(pickle.dumps(sent, 4))
    assert_alike(got, expected)
    assert all(one.flags.writeable for one in got if isinstance(one, np.ndarray))


def test_what_has_a_way_of_its_own_takes_it(both: Both) -> None:
    class_of_its_own = torch.nn.Parameter(torch.arange(3.0))
    with torch.sparse.check_sparse_tensor_invariants():
        sparse = torch.eye(3).to_sparse()
    sent = [class_of_its_own, sparse, torch.ones(2, requires_grad=True)]
    with torch.sparse.check_sparse_tensor_invariants():
        got, lent = both.carry(sent)
    assert lent == []
    assert type(got[0]) is torch.nn.Parameter
    assert got[0].tolist() == [0, 1, 2]
    assert got[1].to_dense().tolist() == torch.eye(3).tolist()
    assert got[2].requires_grad


def test_numbers_that_are_yet_to_be_conjugated_or_negated_are(both: Both) -> None:
    conjugate = torch.full((WIDE,), 1 + 2j).conj()
    got, _ = both.carry([conjugate, conjugate.imag])
    assert set(got[0].tolist()) == {1 - 2j}
    assert set(got[1].tolist()) == {-2.0}


def test_what_was_lent_for_a_batch_that_fails_is_given_back(both: Both) -> None:
    for _ in range(50):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            pack([torch.zeros(1 << 20), lambda: None], both.writer)
    assert both.writer.lease(1 << 22)._token[0] == 0  # the first block, free again


def test_a_full_arena_sends_everything_through_the_pipe() -> None:
    writer = Writer(ArenaMemory.create(1 << 16))
    sent = [torch.arange(WIDE * count) for count in (1, 2, 5, 9)]
    data, lent = pack(sent, writer)
    assert 0 < len(lent) < 4
    memory = writer._memory
    assert_alike(unpack(data, Reader(memory).lease(lent)), sent)


shapes = st.lists(st.integers(0, 40), max_size=4)
leaves = st.one_of(
    st.builds(
        lambda dtype, shape, turn: numbers(dtype, *shape).permute(
            sorted(range(len(shape)), key=lambda d: (d * turn) % 7)
        ),
        st.sampled_from(DTYPES),
        shapes,
        st.integers(0, 5),
    ),
    st.builds(lambda shape: np.arange(int(np.prod(shape))).reshape(shape), shapes),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
)
batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)

_shared = ArenaMemory.create(1 << 30)
_both = Both(Writer(_shared), Reader(_shared))


@given(batches)
@settings(deadline=None, max_examples=150)
def test_any_batch_comes_back(batch: Any) -> None:
    got, lent = _both.carry(batch)
    assert_alike(got, batch)
    del got
    assert len(_both.reader.take_released()) >= len(lent)


@given(
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.booleans(),
    st.lists(
        st.builds(
            BlockRef,
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**32 - 1),
        )
    ),
    st.binary(),
)
@settings(deadline=None)
def test_any_result_is_read_as_it_was_written(
    samples_s: float, packing_s: float, is_in_block: bool, lent: list[BlockRef], data: bytes
) -> None:
    sent = Result(samples_s, 0.5, packing_s, is_in_block, lent, data)
    got = Result.decode(sent.encode())
    assert got._replace(data=bytes(got.data)) == sent


class Ends(NamedTuple):
    """A pipe of the loader's with itself."""

    inbox: Inbox
    outbox: Outbox


@pytest.fixture
def ends() -> Iterator[Ends]:
    read, write = pipe()
    made = Ends(Inbox(read), Outbox(write))
    yield made
    made.inbox.close()
    made.outbox.close()


def test_messages_of_any_size_cross_a_pipe_that_is_soon_full(
    ends: Ends,
) -> None:
    inbox, outbox = ends
    sent = [bytes([n % 251]) * n for n in (0, 1, 3, 4, 70_000, 0, 5_000_000, 1, 65_536, 65_532)]
    for message in sent:
        outbox.send(message)
    assert not outbox.flush()
    got: list[bytes] = []
    while len(got) < len(sent):
        got += inbox.receive()
        outbox.flush()
    assert got == sent
    assert outbox.flush()
    assert inbox.receive() == []
    assert not inbox.is_at_end


@given(st.lists(st.binary(max_size=30)), st.lists(st.integers(1, 9), min_size=1))
@settings(deadline=None)
def test_messages_that_arrive_in_pieces_are_put_together(
    messages: list[bytes], pieces: list[int]
) -> None:
    (read, write), (receiving, sending) = pipe(), pipe()
    outbox, inbox = Outbox(write), Inbox(receiving)
    for message in messages:
        outbox.send(message)
    outbox.close()
    got: list[bytes] = []
    turn = 0
    while piece := os.read(read, pieces[turn % len(pieces)]):
        os.write(sending, piece)
        got += inbox.receive()
        turn += 1
    os.close(sending)
    got += inbox.receive()
    assert got == messages
    assert inbox.is_at_end
    os.close(read)


def test_what_multiprocessing_reads_and_writes_is_understood() -> None:
    (read, put), (receive, write) = pipe(), pipe()
    outbox, inbox = Outbox(put), Inbox(receive)
    take, send = Connection(read, writable=False), Connection(write, readable=False)
    large = os.urandom(1 << 20)
    got: list[bytes] = []

    def worker() -> None:
        for _ in range(3):
            send.send_bytes(take.recv_bytes()[::-1])

    thread = threading.Thread(target=worker)
    thread.start()
    for message in (b"ab", large, b""):
        outbox.send(message)
    while len(got) < 3:
        outbox.flush()
        got += inbox.receive()
    thread.join()
    assert got == [b"ba", large[::-1], b""]
    take.close()
    send.close()


def test_an_outbox_whose_reader_is_gone_keeps_nothing(ends: Ends) -> None:
    inbox, outbox = ends
    inbox.close()
    outbox.send(b"x" * 1_000_000)
    assert outbox.flush()
    outbox.close()
    outbox.send(b"x")
    assert outbox.flush()


def test_an_inbox_hears_what_was_said_before_the_end(ends: Ends) -> None:
    inbox, outbox = ends
    outbox.send(b"last words")
    outbox.close()
    assert inbox.receive() == [b"last words"]
    assert inbox.receive() == []
    assert inbox.is_at_end


def test_an_end_is_closed_once_however_often_it_is_told() -> None:
    end = Outbox(pipe()[1])
    number = end.fileno()
    end.close()
    assert end.fileno() == -1
    taken = os.open(os.devnull, os.O_RDONLY)
    assert taken <= number
    while taken < number:
        taken = os.dup(taken)
    end.close()
    del end
    os.fstat(number)  # still open: it is another's now


def test_ends_that_are_forgotten_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    read, write = pipe()
    both = [Inbox(read), Outbox(write), ArenaMemory.create(8192), WorkerPayload.create(())]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    both.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def filled(arguments: dict[int, Any]) -> WorkerPayload:
    payload = WorkerPayload.create(())
    assert payload is not None
    assert payload.fill(arguments)
    return payload


def test_a_payload_brings_what_was_put_in() -> None:
    arguments = {1: [np.arange(5), "text"], 4: {"key": (1, 2.5)}, 9: None}
    payload = filled(arguments)
    for _ in range(2):
        assert_alike(payload.load(payload.message()), arguments)
    payload.close()
    payload.close()


def test_a_payload_shares_the_memory_of_tensors() -> None:
    tensor = torch.arange(4)
    payload = filled({0: [tensor, {"again": tensor}]})
    loaded = payload.load(payload.message())[0]
    assert loaded[0] is loaded[1]["again"]
    tensor[2] = 7
    assert loaded[0].tolist() == [0, 1, 7, 3]
    payload.close()


def test_what_cannot_be_pickled_or_only_be_inherited_makes_no_payload() -> None:
    lock = torch.multiprocessing.get_context("spawn").Lock()
    for arguments in ({0: lambda: None}, {0: [{"lock": lock}]}):
        payload = WorkerPayload.create(())
        assert payload is not None
        assert not payload.fill(arguments)
        payload.close()


def test_a_payload_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    payload = filled({0: "x" * 100_000})
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert payload.load(payload.message()) == {0: "x" * 100_000}
    payload.close()
    assert len(os.listdir("/proc/self/fd")) == before
