"""One copy of data that several jobs have: nothing but memory shows it."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from cputrain.runtime.common_data import MIN_BYTES, CommonData, create_common_data
from cputrain.runtime.glibc import M_MMAP_THRESHOLD
from cputrain.runtime.memory_pressure import MemoryPressure

ROWS = 40_000
"""Rows of 1 KiB: more than glibc ever takes from its heap."""


IS_MMAPPED = 2
"""Flag of glibc beside a block's size."""


@pytest.fixture
def path() -> Iterator[str]:
    descriptor = create_common_data()
    yield f"/proc/self/fd/{descriptor}"
    os.close(descriptor)


def data_anywhere(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-99, 99, (rows, 256), generator=generator, dtype=torch.int32)


def in_a_mapping(make: Callable[[], Any], address_of: Callable[[Any], int]) -> Any:
    """What is made in a mapping of its own: the heap may have a free block that is large enough."""
    in_heap = []
    while True:
        made = make()
        size_and_flags = ctypes.c_size_t.from_address(address_of(made) - 8).value
        if size_and_flags & IS_MMAPPED or made.nbytes < MIN_BYTES:
            return made
        in_heap.append(made)


def data(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    made: torch.Tensor = in_a_mapping(lambda: data_anywhere(seed, rows), torch.Tensor.data_ptr)
    return made


def array() -> np.ndarray[Any, Any]:
    """An array with memory of its own."""
    made: np.ndarray[Any, Any] = in_a_mapping(
        lambda: data_anywhere().numpy().copy(), lambda made: made.ctypes.data
    )
    return made


def pages_of(tensor: torch.Tensor) -> dict[str, int]:
    """Return KiB of the mapping that a tensor is in."""
    address = tensor.data_ptr() + tensor.nbytes // 2
    sizes: dict[str, int] = {}
    is_inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            name, *fields = line.split()
            if not name.endswith(":"):
                low, _, high = name.partition("-")
                is_inside = int(low, 16) <= address < int(high, 16)
            elif is_inside and name[:-1] in ("Anonymous", "Rss"):
                sizes[name[:-1]] = int(fields[0])
    return sizes


def is_shared(tensor: torch.Tensor) -> bool:
    return pages_of(tensor)["Anonymous"] < tensor.nbytes // 4096


def test_equal_data_is_mapped_at_the_same_address(path: str) -> None:
    first, second, third = data(), data(), data()
    address, version = second.data_ptr(), second._version
    assert CommonData(path).share(first) == 0  # the first job keeps what it has
    for later in (second, third):
        assert CommonData(path).share(later) > 0.99 * later.nbytes
    assert not is_shared(first)
    assert is_shared(second)
    assert is_shared(third)
    assert second.data_ptr() == address
    assert second._version == version
    assert not second.is_shared()
    assert torch.equal(second, first)
    assert torch.equal(third, first)


def test_a_later_epoch_maps_the_first_job_too(path: str) -> None:
    first, second = data(), data()
    jobs = CommonData(path), CommonData(path)
    assert [jobs[0].share(first), jobs[1].share(second) > 0] == [0, True]
    assert jobs[0].share(first) > 0
    assert jobs[0].share(first) == 0  # nothing is left to map
    assert torch.equal(first, second)


def test_writes_are_seen_by_the_writer_alone(path: str) -> None:
    expected = data()
    tensors = [data(), data(), data()]
    for tensor in tensors:
        CommonData(path).share(tensor)
    tensors[1][::7] = 1
    tensors[2].mul_(2)
    assert torch.equal(tensors[0], expected)
    assert torch.equal(tensors[2], 2 * expected)
    assert bool((tensors[1][::7] == 1).all())
    assert torch.equal(tensors[1][1::7], expected[1::7])
    fourth = data()
    assert CommonData(path).share(fourth) > 0
    assert torch.equal(fourth, expected)


def test_data_that_differs_in_a_byte_is_kept(path: str) -> None:
    for place in (0, ROWS // 2 + 7, ROWS - 5):
        tensors = [data(), data(), data()]
        tensors[2][place, 3] += 1
        for tensor in tensors:
            CommonData(path).share(tensor)
        assert not torch.equal(tensors[2], tensors[0])
        assert int((tensors[2] != tensors[0]).sum()) == 1


class Images:
    """A dataset as users write it."""

    def __init__(self, seed: int = 0) -> None:
        self.images = data(seed)
        self.targets = data(seed + 1).numpy()
        self.folds = [data(seed + 2), data(seed + 3)]
        self.name = "x"


OWNERS: dict[str, Any] = {
    "tensor": data,
    "view": lambda: data()[100:200, 3],
    "array": array,
    "view of an array": lambda: array()[1:].T,
    "TensorDataset": lambda: TensorDataset(data(0), data(1)),
    "Subset": lambda: Subset(TensorDataset(data()), range(5)),
    "ConcatDataset": lambda: ConcatDataset([TensorDataset(data(0)), TensorDataset(data(1))]),
    "attributes": Images,
    "dictionary": lambda: {"x": data(), "y": None},
}


@pytest.mark.parametrize("name", OWNERS)
def test_large_data_of_datasets_is_shared(path: str, name: str) -> None:
    kept = [OWNERS[name]() for _ in range(2)]
    shared = [CommonData(path).share(owner) for owner in kept]
    assert shared[0] == 0
    assert shared[1] > 0.9 * ROWS * 1024


NOT_SHARED: dict[str, Any] = {
    "small": lambda: torch.zeros(MIN_BYTES // 8),
    "shared memory": lambda: data().share_memory_(),
    "meta": lambda: torch.empty(ROWS, 256, device="meta"),
    "sparse": lambda: torch.eye(5).to_sparse(),
    "objects": lambda: np.array([object()] * (MIN_BYTES // 2)),
    "empty": lambda: torch.empty(0),
    "number": lambda: 3,
    "parameter": lambda: torch.nn.Parameter(torch.zeros(ROWS, 256)),
    "file": lambda: torch.from_file(torch.__file__, size=1 << 12, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", NOT_SHARED)
def test_other_memory_is_left_alone(path: str, name: str) -> None:
    kept = [NOT_SHARED[name]() for _ in range(3)]
    assert [CommonData(path).share(owner) for owner in kept] == [0, 0, 0]


def in_child(function: Any) -> None:
    """Run a function in a forked process; fail if it fails."""

    def call() -> None:
        torch.set_num_threads(1)  # a fork does not copy OpenMP's threads
        function()

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_blocks_of_the_heap_are_left_alone(path: str) -> None:
    def share() -> None:
        from cputrain.runtime.glibc import Malloc

        Malloc()._libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        kept = [data_anywhere() for _ in range(3)]
        assert [CommonData(path).share(owner) for owner in kept] == [0, 0, 0]

    in_child(share)


@pytest.mark.long
def test_freed_and_resized_memory_is_as_always(path: str) -> None:
    """Whatever is freed, resized and allocated afterwards has the bytes that it should have."""

    def shuffle() -> None:
        rng = random.Random(0)
        expected = {seed: data(seed) for seed in range(3)}
        held: list[tuple[int, torch.Tensor]] = []
        for _ in range(150):
            job, seed = CommonData(path), rng.randrange(3)
            action = rng.randrange(6)
            if action < 3 or not held:
                tensor = data(seed)
                job.share(tensor)
                held.append((seed, tensor))
            elif action == 3:
                held.pop(rng.randrange(len(held)))
                gc.collect()
            elif action == 4:
                number, tensor = held.pop(rng.randrange(len(held)))
                tensor.resize_(2 * ROWS, 256)
                assert torch.equal(tensor[:ROWS], expected[number])
            else:
                zeros = torch.zeros(ROWS, 256, dtype=torch.int32)
                assert not zeros.any()
                assert not np.zeros((ROWS, 64)).any()
            held = held[-4:]
            for number, tensor in held:
                assert torch.equal(tensor, expected[number])

    in_child(shuffle)


def test_a_forked_process_sees_the_data(path: str) -> None:
    tensors = [data(), data()]
    jobs = [CommonData(path) for _ in tensors]
    for job, tensor in zip(jobs, tensors, strict=True):
        job.share(tensor)

    def check() -> None:
        assert torch.equal(tensors[0], tensors[1])
        assert jobs[0].share(tensors[0]) == 0  # a worker maps nothing
        tensors[1].zero_()

    in_child(check)
    assert torch.equal(tensors[0], tensors[1])


def test_a_job_that_is_killed_holds_no_lock(path: str) -> None:
    def hang() -> None:
        with CommonData(path)._locked():
            time.sleep(1000)

    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    time.sleep(0.3)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    tensors = [data(), data()]
    assert [CommonData(path).share(tensor) > 0 for tensor in tensors] == [False, True]


def test_no_more_is_stored_than_there_is_memory_for(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(MemoryPressure, "available_bytes", lambda _: 10 << 20)
    tensors = [data(), data()]
    assert [CommonData(path).share(tensor) for tensor in tensors] == [0, 0]
