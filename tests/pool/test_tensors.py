"""Tensors and arrays come as they were sent, belong to who gets them, and cost no more."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain import Pool
from cputrain.errors import WorkerDied
from tests.data.alike import assert_alike
from tests.pool import functions as f
from tests.pool.functions import METHODS, until
from tests.pool.scripts import ended

pytestmark = pytest.mark.usefixtures("nothing_left")

MEBIBYTE = 1 << 20


@pytest.fixture
def pool(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Pool]:
    with Pool(2, context="fork") as made:
        yield made
    request.node.funcargs.clear()  # who looks for what is left does so before pytest lets go


@pytest.fixture(scope="module")
def lasting() -> Iterator[Pool]:
    """For Hypothesis, which calls one test many times."""
    with Pool(2, context="fork") as made:
        made.map(f.double, range(4))
        assert all(worker.pid for worker in made._pool)  # both have started
        yield made


# as they were

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
ARRAYS = ["?", "i1", "<i4", ">i4", "f2", "f8", "c16", "U3", "M8[s]", "i4,f8"]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 60), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    size = 1
    for one in shape:
        size *= one
    made = (torch.arange(size) % 251).to(dtype).view(shape)
    if made.dim() and draw(st.booleans()):
        made = made.transpose(0, -1)
    if made.dim() and draw(st.booleans()):
        made = made[draw(st.integers(0, 3)) :]
    if made.dim() and draw(st.booleans()):
        # what is packed densely comes densely; a step of two is kept
        made = made.unsqueeze(0).expand(draw(st.integers(1, 3)), *made.shape)
    if draw(st.booleans()) and made.is_complex():
        made = made.conj()
    return made


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 60), max_size=3)))
    made = np.zeros(shape, draw(st.sampled_from(ARRAYS)))
    if made.dtype.kind in "if":
        made += (np.arange(made.size) % 120).reshape(shape).astype(made.dtype)
    return np.asfortranarray(made) if draw(st.booleans()) else made


LEAVES = st.one_of(tensors(), arrays(), st.integers(), st.text(max_size=5), st.none())
THINGS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(things=st.lists(THINGS, min_size=1, max_size=4), chunksize=st.integers(1, 3))
def test_whatever_is_sent_comes_back_as_it_was(
    lasting: Pool, things: list[Any], chunksize: int
) -> None:
    for back in (
        lasting.map(f.same, things, chunksize=chunksize),
        list(lasting.imap(f.same, things, chunksize=chunksize)),
        [lasting.apply(f.same, (thing,)) for thing in things],
    ):
        assert_alike(_dense(back), _dense(things))


def _dense(thing: Any) -> Any:
    """A sparse view of a large storage comes densely."""
    if isinstance(thing, torch.Tensor):
        return thing.resolve_conj().contiguous()
    if isinstance(thing, dict):
        return {key: _dense(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(_dense(one) for one in thing)
    return thing


@pytest.mark.parametrize("method", METHODS)
def test_tensors_of_every_kind_keep_their_strides(method: str) -> None:
    image = torch.arange(2 * 3 * 40 * 40).view(2, 3, 40, 40)
    whole = torch.arange(9000)
    things = [
        whole.unfold(0, 500, 250),
        [whole, whole[10:20], whole],
        image.to(torch.bfloat16),
        torch.complex(image.float(), -image.float()),
        torch.tensor(5),
        torch.empty(0, 3, dtype=torch.int16),
        image.contiguous(memory_format=torch.channels_last),
        image.transpose(1, 3),
        np.asfortranarray(image[0].numpy()),
        {"nested": [(whole[:5], {"a": None}), "text", b"bytes", 0.5]},
    ]
    with Pool(1, context=method) as pool:
        assert_alike(pool.map(f.same, things), things)


def test_views_of_one_storage_stay_views_of_one_storage(pool: Pool) -> None:
    whole = torch.ones(10_000)
    views = {"whole": whole, "half": whole[:5000], "again": whole}
    assert pool.apply(f.of_views, (views,)) == [True] * 3
    assert bool((whole == 1).all())
    assert f.of_views(pool.apply(f.shared_views, (3,))) == [True] * 3


def test_parameters_come_as_parameters(pool: Pool) -> None:
    back = pool.apply(f.same, (torch.nn.Parameter(torch.ones(3000)),))
    assert isinstance(back, torch.nn.Parameter)
    assert back.requires_grad
    leaf = pool.apply(f.same, (torch.ones(3000, requires_grad=True),))
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert bool((leaf == 1).all())
    model = pool.apply(f.linear, (4,))
    assert model.weight[3, 5].item() == 4
    assert pool.apply(f.total, (model.weight,)) == 4 * 600 * 600


@pytest.mark.parametrize("size", [3000, 500_000, 10 << 20])
def test_long_arguments_without_tensors_come_whole(pool: Pool, size: int) -> None:
    text = "x" * size
    numbers = list(range(size // 100))
    for thing in (text, text.encode(), numbers, {"a": [text, numbers]}):
        assert pool.apply(f.same, (thing,)) == thing
    assert pool.map(f.same, [text, numbers, text], chunksize=2) == [text, numbers, text]
    assert pool.apply(partial(f.add, text), (text,)) == text + text


def test_every_length_around_a_packet_comes_whole(pool: Pool) -> None:
    lengths = [*range(3800, 4300), *range(16_000, 16_500, 7)]
    for back, length in zip(
        pool.imap(f.same, (b"x" * length for length in lengths)), lengths, strict=True
    ):
        assert len(back) == length


# whose they are


def test_results_can_be_written_to(pool: Pool) -> None:
    for number, made in enumerate(pool.map(f.filled, range(20), chunksize=1)):
        made += 1
        assert bool((made == number + 1).all())
    array = pool.apply(f.same, (np.zeros(5000),))
    array += 3
    assert array.sum() == 15_000


@pytest.mark.parametrize("size", [100, 3000, MEBIBYTE // 4, MEBIBYTE])
@pytest.mark.parametrize("chunksize", [1, 5])
def test_what_a_task_writes_reaches_nobody_else(pool: Pool, size: int, chunksize: int) -> None:
    tensor = torch.ones(size)
    expected = [float(size)] * 40
    # a pickle holds one tensor once, so the items of one chunk share it, as with multiprocessing
    if chunksize == 1:
        assert pool.map(f.add_one, [tensor] * 40, chunksize=1) == expected
    assert list(pool.imap(f.add_one, [tensor] * 40)) == expected
    assert [pool.apply(f.add_one, (tensor,)) for _ in range(10)] == expected[:10]
    separate = [tensor.clone() for _ in range(40)]
    assert pool.map(f.add_one, separate, chunksize=chunksize) == expected
    assert all(bool((one == 1).all()) for one in (tensor, *separate))


def test_what_a_task_writes_to_an_array_reaches_nobody_else(pool: Pool) -> None:
    array = np.ones(MEBIBYTE // 8)
    assert pool.map(f.add_one_to_array, [array] * 40, chunksize=1) == [array.size] * 40
    assert (array == 1).all()


def test_what_a_task_changes_later_reaches_nobody_else(pool: Pool) -> None:
    tensor = torch.ones(MEBIBYTE // 4)
    expected = [float(tensor.numel())] * 60
    assert pool.map(f.raise_and_keep, [tensor] * 60, chunksize=1) == expected
    assert pool.map(f.total, [tensor] * 10, chunksize=1) == expected[:10]
    assert bool((tensor == 1).all())
    other = torch.full((MEBIBYTE // 4,), 2.0)
    doubled = [2 * one for one in expected]
    assert pool.map(f.raise_and_keep, [other] * 60, chunksize=1) == doubled


def test_what_a_task_writes_to_a_model_does_not_reach_the_parent(pool: Pool) -> None:
    model = torch.nn.Linear(100, 100)
    before = [one.detach().clone() for one in model.parameters()]
    for _ in range(3):
        pool.apply(f.step, (model,))
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(one.is_shared() for one in model.parameters())


def test_what_a_task_keeps_is_unchanged_hundreds_of_tasks_later() -> None:
    with Pool(1, context="fork") as pool:
        for number in range(20):
            assert pool.apply(f.kept, (torch.full((30_000,), float(number)),)) == number + 1
        for number in range(300):
            assert pool.apply(f.total, (torch.full((30_000,), float(number)),)) == 30_000 * number
        pool.map(f.total, [torch.full((30_000,), -1.0) for _ in range(300)], chunksize=3)
        assert [one[1:] for one in pool.apply(f.looked_at, (0,))] == [[n, n] for n in range(20)]


def test_what_a_dead_worker_has_kept_is_used_again_and_nothing_else_is(pool: Pool) -> None:
    for number in range(30):
        pool.apply(f.kept, (torch.full((30_000,), float(number)),))
    held = {one[0] for one in pool.map(f.first_kept, range(40), chunksize=1)}
    victim = min(held)
    os.kill(int(victim), signal.SIGKILL)
    until(lambda: victim not in [worker.pid for worker in pool._pool])
    for number in range(300):
        assert pool.apply(f.total, (torch.full((30_000,), float(number)),)) == 30_000 * number
    for found in pool.map(f.looked_at, range(20), chunksize=1):
        assert all(least == greatest for _, least, greatest in found)


# shared tensors stay shared


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_in_shared_memory_stays_shared(method: str) -> None:
    shared = torch.zeros(3000, dtype=torch.int64).share_memory_()
    tasks = 30 if method == "spawn" else 600
    with Pool(2, context=method) as pool:
        before = _descriptors_at_work(pool)
        counts = pool.starmap(f.add_at, [(shared, index) for index in range(tasks)], chunksize=1)
        assert shared.tolist() == [1] * tasks + [0] * (3000 - tasks)
        counts += pool.imap(f.add_at_once, ((shared, index) for index in range(tasks)))
        assert shared.tolist() == [2] * tasks + [0] * (3000 - tasks)
        for index in range(20):
            counts.append(pool.apply(f.add_at, (shared[5:], index)))
        assert shared[5:25].tolist() == [3] * 20
        for worker in {pid for pid, _ in counts}:  # one that starts later inherits more
            of_it = [count for pid, count in counts if pid == worker]
            # a few are kept open, as they are likely to come again; those inherited are closed
            lows = accumulate(of_it, min)
            assert all(now <= low + 4 for now, low in zip(of_it, lows, strict=True))
        assert f.descriptors() <= before + 1


def test_no_worker_collects_what_the_script_has_left_to_the_collector() -> None:
    """The first one is forked by the script, the others by a process of the pool."""
    gc.disable()
    try:
        cycle: list[Any] = [torch.zeros(3000).share_memory_() for _ in range(11)]
        cycle.append(cycle)
        del cycle
        with Pool(2, context="fork") as pool:
            assert pool.map(f.descriptors_collected, range(20), chunksize=1) == [0] * 20
    finally:
        gc.enable()
    gc.collect()


def test_many_shared_tensors_cost_no_descriptors_once_they_are_gone() -> None:
    with Pool(1, context="fork") as pool:
        counts = []
        before = _descriptors_at_work(pool)
        for number in range(200):
            shared = torch.zeros(3000, dtype=torch.int64).share_memory_()
            counts.append(pool.apply(f.add_at, (shared, number))[1])
            assert shared[number].item() == shared.sum().item() == 1
            del shared
        assert max(counts[50:]) <= max(counts[:50])
        gc.collect()
        assert f.descriptors() <= before


def _shared(number: int) -> torch.Tensor:
    return torch.full((3000,), number).share_memory_()


def _apply_all(pool: Pool) -> Iterator[int]:
    results = [pool.apply_async(f.total, (_shared(number),)) for number in range(40)]
    return (result.get() for result in results)


class _Holder:
    """A function that refers to a shared tensor."""

    def __init__(self) -> None:
        self.tensor = _shared(0)

    def __call__(self, _: object) -> float:
        return float(self.tensor.sum())


def _items_and_states(holder: _Holder) -> Iterator[int]:
    for number in range(40):
        holder.tensor = _shared(number)
        yield number


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.imap(f.total, list(map(_shared, range(40))), 3),
        lambda pool: pool.imap(f.total, map(_shared, range(40))),
        lambda pool: pool.map_async(f.total, list(map(_shared, range(40)))).get(),
        _apply_all,
        lambda pool: pool.imap(holder := _Holder(), _items_and_states(holder)),
    ],
    ids=["imap", "iterator", "map", "apply", "function"],
)
def test_a_shared_tensor_lives_until_its_task_has_opened_it(pool: Pool, call: Any) -> None:
    """Whether the script holds it or not; the workers are busy when it is packed."""
    naps = [pool.apply_async(f.nap, (0.2,)) for _ in range(2)]
    results = call(pool)
    gc.collect()
    assert list(results) == [3000 * number for number in range(40)]
    assert [nap.get() for nap in naps]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_that_is_let_go_takes_its_memory_along(method: str) -> None:
    """Not only when garbage is collected."""
    with Pool(2, context=method) as pool:
        pool.map(f.filled, range(9))
    del pool
    gc.collect()
    gc.disable()
    try:
        before = f.descriptors()
        pool = Pool(2, context=method)
        assert len(pool.map(f.filled, range(9))) == 9
        assert len(list(pool.imap(f.filled, range(9)))) == 9
        assert pool.apply_async(f.add_at, (torch.zeros(9), 1)).get()
        assert f.descriptors() > before
        pool.terminate()
        pool.join()
        del pool
        assert f.descriptors() <= before
    finally:
        gc.enable()


def _descriptors_at_work(pool: Pool) -> int:
    pool.map(f.nap, [0.01] * 8, chunksize=1)
    assert all(worker.pid for worker in pool._pool)
    return f.descriptors()


# for how long


def test_results_can_be_kept_for_ever(pool: Pool) -> None:
    kept = []
    for number, made in enumerate(pool.imap(f.filled, range(2000))):
        assert made[0] == number
        kept.append(made)
    assert all(bool((made == number).all()) for number, made in enumerate(kept))


def test_results_outlive_their_pool_and_its_workers() -> None:
    with Pool(2, context="fork") as pool:
        kept = pool.map(f.filled, range(100), chunksize=1)
        for worker in list(pool._pool):
            os.kill(worker.pid, signal.SIGKILL)
        more = pool.map(f.filled, range(100, 200), chunksize=1)
        with pytest.raises(WorkerDied):
            pool.apply(f.end, ("SIGKILL",))
        more += pool.map(f.filled, range(200, 300), chunksize=1)
        kept += more
        assert all(bool((made == number).all()) for number, made in enumerate(kept))
    del pool
    gc.collect()
    with Pool(2, context="fork") as pool:
        pool.map(f.filled, range(-100, 0), chunksize=1)
    assert all(bool((made == number).all()) for number, made in enumerate(kept))


@pytest.mark.parametrize("most", [None, pytest.param(100, marks=pytest.mark.long)])
def test_the_memory_of_results_is_used_again(most: int | None) -> None:
    results, seen = 5000, []
    with Pool(2, context="fork", maxtasksperchild=most) as pool:
        for number, made in enumerate(pool.imap(f.filled_million, iter(range(results)))):
            assert made[-1] == number
            if number % 500 == 250:
                seen.append(f.resident())
    assert max(seen) < seen[0] + 48 * MEBIBYTE, [one // MEBIBYTE for one in seen]


def test_the_memory_of_arguments_is_used_again(pool: Pool) -> None:
    seen = []
    for number, answer in enumerate(
        pool.imap(f.total, (f.filled_million(number) for number in range(2000)))
    ):
        assert answer == number << 17
        if number % 200 == 100:
            seen.append(f.resident())
    # 2,000 MiB have gone through; 32 MiB for each process may be on their way at a time
    assert max(seen) < seen[0] + 160 * MEBIBYTE, [one // MEBIBYTE for one in seen]


def test_a_pool_leaves_no_memory_behind() -> None:
    gc.collect()
    before = f.shared_bytes()
    for _ in range(3):
        with Pool(2, context="fork") as pool:
            pool.map(f.same, [torch.ones(MEBIBYTE)] * 4, chunksize=1)
        del pool
    gc.collect()
    assert f.shared_bytes() <= before


# one copy


def test_one_tensor_for_every_task_is_copied_once(pool: Pool) -> None:
    size = 32 * MEBIBYTE
    big = torch.arange(size // 4, dtype=torch.int32)
    before = f.shared_bytes()
    calls = {
        "map": lambda: pool.map(partial(f.element, big), range(100), chunksize=1),
        "starmap": lambda: pool.starmap(f.element, [(big, n) for n in range(100)], chunksize=1),
        "imap": lambda: list(pool.imap(partial(f.element, big), range(100))),
        "array": lambda: pool.starmap(
            f.element, [(big.numpy(), n) for n in range(100)], chunksize=1
        ),
    }
    for name, call in calls.items():
        assert call() == [float(number) for number in range(100)], name
        assert f.shared_bytes() - before < 3 * size, name


@pytest.mark.parametrize("of", ["columns", "rows"])
def test_many_views_of_one_tensor_do_not_pile_up(of: str, tmp_path: Any) -> None:
    slices = "big[:, i % 64]" if of == "columns" else "big.T[i % 64]"
    text = f"""
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10
if __name__ == "__main__":
    big = torch.ones(1 << 18, 64)
    if {of!r} == "rows":
        big = big.T.contiguous().T
    with Pool(2) as pool:
        pool.map(f.total, [{slices} for i in range(8)], chunksize=1)
        before = peak()
        assert pool.map(f.total, [{slices} for i in range(640)], chunksize=1)[9] == 1 << 18
        print(peak() - before)
"""
    code, out, err = ended(tmp_path, text)
    assert code == 0, err
    assert int(out) < 200
