"""What goes wrong in loading is told soon, and leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Sampler

from cputrain.data import DataLoader
from tests.data.alike import assert_alike
from tests.data.samples import Rows, untouched
from tests.launch.programs import PYTHON, environment
from tests.left_behind import children, descriptors

LIMIT = 60
"""Seconds after which a test is taken to hang."""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fails a test that hangs."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"not over after {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_left(in_time: None) -> Iterator[None]:
    """Fails a test that leaves processes or descriptors."""
    gc.collect()
    before = children(), len(descriptors())
    yield
    gc.collect()
    assert children() <= before[0]
    assert len(descriptors()) <= before[1]


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _killed(row: int) -> Any:
    if row == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def _aborted(row: int) -> Any:
    if row == 5:
        os._exit(7)
    return row


def _left(code: int, row: int) -> Any:
    if row == 5:
        sys.exit(code)
    return row


class Ending(Rows):
    """A worker that ends in some way while it makes a row."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__(self._row, 40)
        self._end = end

    def _row(self, row: int) -> Any:
        if row == 5:
            self._end()
        return row


ENDS: dict[str, tuple[Callable[[], object], str]] = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
    "os._exit(7)": (lambda: os._exit(7), "ended with exit code 7"),
    "os._exit(0)": (lambda: os._exit(0), "ended with exit code 0"),
    "sys.exit(3)": (lambda: sys.exit(3), "ended with exit code 3"),
    "sys.exit()": (sys.exit, "ended with exit code 0"),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_ends_is_named_and_so_is_its_end(name: str, workers: int) -> None:
    end, expected = ENDS[name]
    begin = time.monotonic()
    iterator = iter(DataLoader(Ending(end), batch_size=2, num_workers=workers))
    pids = [worker.pid for worker in iterator._workers]
    with pytest.raises(RuntimeError, match=expected) as raised:
        list(iterator)
    assert time.monotonic() - begin < 20
    assert str(pids[2 % workers]) in str(raised.value)
    # torch has two sentences: its handler of SIGCHLD may be the first to see it
    assert re.search(r"exited unexpectedly|is killed by signal", str(raised.value))


class Slow(Sampler[list[int]]):
    """Takes its time over each batch after the first four."""

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(20):
            time.sleep(0.5 if batch > 3 else 0)
            yield [2 * batch, 2 * batch + 1]


@pytest.mark.parametrize("name", ["SIGKILL", "os._exit(7)"])
def test_a_worker_that_ends_while_a_batch_is_chosen_is_named(name: str) -> None:
    end, expected = ENDS[name]
    iterator = iter(DataLoader(Ending(end), batch_sampler=Slow(), num_workers=2))
    with pytest.raises(RuntimeError, match=expected):
        list(iterator)


def test_a_worker_that_is_killed_is_noticed_in_any_thread() -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            list(DataLoader(Ending(ENDS["SIGKILL"][0]), batch_size=2, num_workers=2))
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    begin = time.monotonic()
    thread.start()
    thread.join()
    assert time.monotonic() - begin < 20
    assert "was killed by SIGKILL" in str(found.pop())


def test_a_worker_killed_from_outside_is_noticed() -> None:
    iterator = iter(DataLoader(Rows(_slow, 500), num_workers=2, prefetch_factor=1))
    next(iterator)
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker .*killed by"):
        list(iterator)


def _slow(row: int) -> Any:
    time.sleep(0.02)
    return row


class LocalError(Exception):
    """An error that cannot be made again from what was pickled of it."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def _raise_local(_: int) -> Any:
    raise LocalError(1, 2)


def _raise_hidden(_: int) -> Any:
    class HiddenError(Exception):
        pass

    raise HiddenError("nobody else knows this class")


def _raise_elsewhere(_: int) -> Any:
    import types

    module = sys.modules["made_in_a_worker"] = types.ModuleType("made_in_a_worker")
    exec("class ThereError(Exception): pass", module.__dict__)
    raise module.ThereError("only there")


def _raise_holding(_: int) -> Any:
    raise ValueError(threading.Lock())


RAISES: dict[str, tuple[Callable[[int], Any], type[Exception], str]] = {
    "an error with arguments of its own": (
        _raise_local,
        RuntimeError,
        "Caught LocalError in DataLoader worker process 0.",
    ),
    "a class that cannot be pickled": (_raise_hidden, RuntimeError, "HiddenError, which cannot be"),
    "a class known there alone": (_raise_elsewhere, ModuleNotFoundError, "made_in_a_worker"),
    "what cannot be pickled": (
        _raise_holding,
        ValueError,
        "Caught ValueError in DataLoader worker process 0.",
    ),
}


@pytest.mark.parametrize("name", RAISES)
def test_whatever_a_dataset_raises_is_told(name: str) -> None:
    make, kind, text = RAISES[name]
    with pytest.raises(kind, match=text):
        list(DataLoader(Rows(make), num_workers=1))


UNSENDABLE: dict[str, Callable[[int], Any]] = {
    "a function": lambda _: lambda: None,
    "a lock": lambda _: threading.Lock(),
    "a generator": lambda _: (row for row in range(3)),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_a_batch_that_cannot_be_sent_is_told_and_the_worker_goes_on(name: str) -> None:
    def make(row: int) -> Any:
        return torch.zeros(5000), (UNSENDABLE[name](row) if row == 1 else row)

    iterator = iter(DataLoader(Rows(make, 6), batch_size=None, num_workers=1))
    assert next(iterator)[1] == 0
    with pytest.raises(RuntimeError, match=r"a batch of type list cannot be sent to the loader"):
        next(iterator)
    assert [number for _, number in iterator] == [2, 3, 4, 5]


class Poison:
    """What can be sent, and not be received."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> Any:
    raise ArithmeticError("boom")


def test_a_batch_that_cannot_be_received_raises_what_it_raises() -> None:
    loader = DataLoader(Rows(lambda _: Poison()), batch_size=None, num_workers=1)
    with pytest.raises(ArithmeticError, match="boom"):
        next(iter(loader))


def _fails(_: Any) -> Any:
    raise KeyError("collate")


def test_an_error_in_collate_is_told() -> None:
    with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process 0"):
        list(DataLoader(Rows(int), collate_fn=_fails, num_workers=1))


def test_an_error_as_a_worker_begins_is_told() -> None:
    with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process 0"):
        list(DataLoader(Rows(int), worker_init_fn=_fails, num_workers=1))


def _sleep(_: int) -> Any:
    time.sleep(1)


@pytest.mark.parametrize("kind", [TorchLoader, DataLoader], ids=["torch", "ours"])
def test_a_batch_that_takes_too_long_is_given_up(kind: Any) -> None:
    before = len(descriptors())
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.3 seconds"):
        list(kind(Rows(_sleep, 1), num_workers=1, timeout=0.3))
    deadline = time.monotonic() + 10
    while kind is TorchLoader and len(descriptors()) > before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread of torch's queue closes its pipe after the loader has ended


def test_an_epoch_left_early_leaves_no_process() -> None:
    for options in ({}, {"persistent_workers": True}):
        loader = DataLoader(Rows(_slow, 500), num_workers=2, **options)
        for number, _ in enumerate(loader):
            if number == 3:
                break
        del loader, number, _
        gc.collect()
        assert not multiprocessing.active_children()


def test_an_iterator_in_a_cycle_is_collected_without_a_word() -> None:
    cycle: list[Any] = [iter(DataLoader(Rows(_slow, 500), num_workers=2))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not multiprocessing.active_children()


# batches that are kept


def _numbered(row: int) -> Any:
    return torch.full((2500,), row)


@pytest.mark.long
def test_ten_thousand_batches_can_be_kept() -> None:
    kept = list(DataLoader(Rows(_numbered, 10_000), batch_size=None, num_workers=2))
    assert all(bool((batch == row).all()) for row, batch in enumerate(kept))


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_outlive_their_loader(persistent: bool) -> None:
    loader = DataLoader(
        Rows(_numbered, 60), batch_size=4, num_workers=2, persistent_workers=persistent
    )
    kept = [batch for _ in range(3) for batch in loader]
    del loader
    gc.collect()
    for _ in DataLoader(Rows(_numbered, 60), batch_size=4, num_workers=2):
        pass
    expected = torch.arange(60).view(15, 4, 1).expand(15, 4, 2500)
    assert torch.equal(torch.stack(kept), torch.cat([expected] * 3))


class Counted(IterableDataset[Any]):
    """Rows without end."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows = rows
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for row in range(self.rows):
            yield torch.full((self.size,), row % 1000)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("rows", "size"),
    [(15_000, 4)]
    + [pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((15_000, 4000), (40_000, 4))],
)
@pytest.mark.long
def test_memory_and_descriptors_stay_as_they_are(rows: int, size: int) -> None:
    signal.alarm(5 * LIMIT)
    iterator = iter(DataLoader(Counted(rows, size), batch_size=None, num_workers=1))
    for _ in range(5000):
        next(iterator)
    before = _resident(), len(descriptors())
    count = 5000
    for batch in iterator:
        assert batch[0] == count % 1000
        count += 1
    assert count == rows
    assert _resident() < before[0] + (24 << 20)
    assert len(descriptors()) <= before[1]


def test_any_batches_may_be_kept_for_any_time_and_be_changed() -> None:
    generator = random.Random(4)
    loader = DataLoader(Rows(_numbered, 900), batch_size=2, num_workers=2)
    lock = threading.Lock()
    held: dict[int, tuple[torch.Tensor, list[int]]] = {}
    over = threading.Event()

    def drop() -> None:
        own = random.Random(5)
        while not over.is_set():
            with lock:
                gone = [held.pop(key) for key in list(held) if own.random() < 0.1]
            for batch, values in gone:
                assert batch[:, 0].tolist() == batch[:, -1].tolist() == values
            del gone
            time.sleep(0.001)

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number, batch in enumerate(loader):
            values = [2 * number, 2 * number + 1]
            assert batch[:, 0].tolist() == batch[:, -1].tolist() == values
            if generator.random() < 0.3:
                batch.neg_()
                values = [-value for value in values]
            if generator.random() < 0.6:
                with lock:
                    held[number] = batch, values
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for batch, values in held.values():
        assert batch[:, 0].tolist() == batch[:, -1].tolist() == values


def _watch(batch: torch.Tensor, go: Any, say: Any) -> None:
    go.wait()
    say.send((batch.min().item(), batch.max().item()))


def test_a_batch_that_a_forked_process_reads_is_never_overwritten() -> None:
    context = multiprocessing.get_context("fork")
    iterator = iter(DataLoader(Rows(_numbered, 200), batch_size=None, num_workers=1))
    go = context.Event()
    children, seen = [], []
    for _ in range(3):
        batch = next(iterator)
        got, say = context.Pipe(duplex=False)
        child = context.Process(target=_watch, args=(batch, go, say))
        child.start()
        children.append(child)
        seen.append(got)
        say.close()
        for _ in range(5):
            batch = None
            batch = next(iterator)
        assert batch is not None
    rest = [int(one[0]) for one in iterator]
    assert rest[-1] == 199
    go.set()
    assert [got.recv() for got in seen] == [(0, 0), (6, 6), (12, 12)]
    for child, got in zip(children, seen, strict=True):
        child.join()
        child.close()
        got.close()


class Remembered(Rows):
    """Rows that were batches of another loader, and that the script replaces by newer ones."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        super().__init__(self._row, 40)
        self.batches = batches

    def _row(self, row: int) -> Any:
        time.sleep(0.005)
        first = self.batches[row % len(self.batches)]
        return int(first.min()), int(first.max())


def test_batches_that_workers_of_another_loader_read_are_not_overwritten() -> None:
    source = iter(DataLoader(Rows(_numbered, 300), batch_size=None, num_workers=1))
    dataset = Remembered([next(source) for _ in range(4)])
    reader = iter(DataLoader(dataset, batch_size=None, collate_fn=tuple, num_workers=1))
    found = [next(reader)]
    dataset.batches.clear()
    for _ in source:
        pass
    found += reader
    assert set(found) == {(row, row) for row in range(4)}


def test_a_batch_can_be_sent_on_to_other_processes() -> None:
    context = torch.multiprocessing.get_context("fork")
    iterator = iter(DataLoader(Rows(_numbered, 40), batch_size=None, num_workers=1))
    there, back = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_sum, args=(there, back))
    child.start()
    sums = []
    for batch in iterator:
        there.put(batch)
        del batch
        sums.append(back.get())
    there.put(None)
    child.join()
    child.close()
    there.close()
    back.close()
    resource_sharer.stop()  # the thread that multiprocessing answers with, and its socket
    assert sums == [2500 * row for row in range(40)]


def _sum(there: Any, back: Any) -> None:
    while (batch := there.get()) is not None:
        back.put(int(batch.sum()))


class Kept:
    """A collate_fn that makes a batch once, and returns it ever after."""

    def __init__(self) -> None:
        self.batch: Any = None

    def __call__(self, rows: Any) -> Any:
        if self.batch is None:
            self.batch = torch.utils.data.default_collate(rows)
        return self.batch


def test_a_batch_that_its_worker_keeps_can_be_sent_again() -> None:
    loader = DataLoader(Rows(_numbered, 90), batch_size=3, num_workers=1, collate_fn=Kept())
    expected = torch.stack([_numbered(row) for row in range(3)])
    kept = []
    for number, batch in enumerate(loader):
        assert torch.equal(batch, expected)
        if number % 3 == 0:
            kept.append(batch)
    assert all(torch.equal(batch, expected) for batch in kept)


def _of_every_kind(rows: list[int]) -> Any:
    row = rows[0]
    image = torch.arange(2 * 3 * 40 * 40).view(2, 3, 40, 40) + row
    whole = torch.arange(9000) + row
    return {
        "overlapping": whole.unfold(0, 500, 250),
        "aliased": [whole, whole[10:20], whole],
        "bfloat16": image.to(torch.bfloat16),
        "complex": torch.complex(image.float(), -image.float()),
        "bool": image % 2 == 0,
        "one": torch.tensor(row),
        "none": torch.empty(0, 3, dtype=torch.int16),
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "expanded": image[:1].expand(5, -1, -1, -1),
        "transposed": image.transpose(1, 3),
        "columns": image[..., ::3],
        "array": np.asfortranarray(image[0].numpy()),
        "nested": [(whole[:5], {"a": None}), "text", b"bytes", row, 0.5],
        "large text": [str(number) for number in range(row, row + 3000)],
    }


def test_batches_of_every_kind_come_as_they_were_made() -> None:
    loader = DataLoader(
        Rows(int, 30), num_workers=2, collate_fn=_of_every_kind, persistent_workers=True
    )
    for _ in range(2):
        kept = []
        for row, batch in enumerate(loader):
            expected = _of_every_kind([row])
            expected["columns"] = expected["columns"].contiguous()
            batch["columns"] = batch["columns"].contiguous()
            assert_alike(batch, expected)
            kept.append((expected, batch))
            if row % 4 == 0:
                kept = kept[::2]
        for expected, batch in kept:
            assert_alike(batch, expected)


def _vast(row: int) -> Any:
    return torch.full((1 << 23,), row), [f"{row} {number}" for number in range(50_000)]


def test_vast_batches_of_numbers_and_of_objects() -> None:
    loader = DataLoader(Rows(_vast, 12), batch_size=None, num_workers=2)
    for row, (numbers, texts) in enumerate(loader):
        assert numbers[0] == numbers[-1] == row
        assert len(texts) == 50_000
        assert texts[-1] == f"{row} 49999"


def test_tasks_larger_than_a_pipe() -> None:
    batches = [list(range(number, number + 200_000)) for number in range(20)]
    loader = DataLoader(
        Rows(int, 300_000),
        batch_sampler=batches,
        collate_fn=_ends_of,
        num_workers=2,
        prefetch_factor=8,
    )
    assert list(loader) == [(batch[0], batch[-1], len(batch)) for batch in batches]


def _ends_of(rows: list[int]) -> Any:
    return rows[0], rows[-1], len(rows)


# processes of their own: what happens to the whole of them


def started(folder: Path, text: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """A script, with the functions above at hand, in a session of its own."""
    path = folder / "script.py"
    path.write_text(
        "import os, resource, signal, sys, time\n"
        "import torch\n"
        "from cputrain.data import DataLoader\n"
        "from tests.data.samples import Rows, as_large_array\n"
        f"{text}"
    )
    return subprocess.Popen(
        [*words, PYTHON, str(path)],
        cwd=folder,
        env=environment(folder, PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def ended(folder: Path, text: str, *words: str) -> tuple[int, str, str]:
    """A script's exit code, and what it said."""
    process = started(folder, text, *words)
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


SLOWLY = """
def slow(row):
    time.sleep({pause})
    return torch.full((3000,), row)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = DataLoader(Rows(slow, 10_000), num_workers=2, multiprocessing_context="{method}")
    iterator = iter(loader)
    {first}
    print(*(worker.pid for worker in iterator._workers), flush=True)
    {then}
"""


@pytest.mark.parametrize(
    ("method", "busy"), [("fork", True), ("fork", False), ("spawn", True), ("forkserver", False)]
)
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path, method: str, busy: bool) -> None:
    text = SLOWLY.format(
        method=method,
        pause=0.2 if busy else 0,
        first="next(iterator)",
        then="for _ in iterator: pass" if busy else "time.sleep(60)",
    )
    process = started(tmp_path, text)
    assert process.stdout is not None
    assert process.stderr is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(_runs, pids))
    process.kill()
    process.wait()
    end = time.monotonic() + 8
    while any(map(_runs, pids)):
        assert time.monotonic() < end, "workers are left"
        time.sleep(0.02)
    process.stdout.close()
    process.stderr.close()
    pids.append(process.pid)
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in pids)]


def test_one_interrupt_is_enough(tmp_path: Path) -> None:
    text = SLOWLY.format(method="fork", pause=20, first="", then="next(iterator)")
    process = started(tmp_path, text)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    time.sleep(0.3)  # until it waits, and so do its workers
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin < 20
    assert not any(map(_runs, pids))
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")


def without_shared_memory() -> list[str]:
    """The words before a command that has hardly any /dev/shm."""
    mount = 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"'
    for options in ("-rm", "-m"):
        words = ["unshare", options, "sh", "-c", mount, "sh"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("/dev/shm can be hidden from no process here")


FULL = """
from torch.utils.data import DataLoader as TorchLoader
if __name__ == "__main__":
    for kind in (TorchLoader, DataLoader):
        try:
            rows = [batch[:, 0].tolist() for batch in kind(Rows(as_large_array), 4, num_workers=2)]
            print(sum(rows, []) == list(range(23)))
        except Exception as error:
            print(type(error).__name__)
"""


def test_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:
    code, out, err = ended(tmp_path, FULL, *without_shared_memory())
    assert code == 0, err
    theirs, ours = out.split()
    assert theirs.endswith("Error")  # of torch's own loader: there is no room indeed
    assert ours == "True"


FEW = """
from cputrain.errors import ResourceError
import gc, multiprocessing
if __name__ == "__main__":
    loader = DataLoader(Rows(as_large_array), 4, num_workers=2)
    first = list(loader)
    gc.collect()
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = failed = 0
    for spare in range(28):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1 + spare, hard))
        try:
            assert len(list(loader)) == len(first)
            made += 1
        except ResourceError as error:
            assert not made, spare
            assert "Too many open files" in str(error) and "ulimit -n" in str(error), error
            failed += 1
            del error
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.collect()
        assert not multiprocessing.active_children()
        lost = len(os.listdir("/proc/self/fd")) - used
        assert lost in (0, 2), spare  # multiprocessing loses a pipe where it gets no second one
        used += lost
    iterator = iter(loader)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    print(failed > 3, made > 3, len(list(iterator)) == len(first))
"""


def test_too_few_descriptors_are_told_before_the_start_and_none_are_needed_after(
    tmp_path: Path,
) -> None:
    code, out, err = ended(tmp_path, FEW)
    assert code == 0, err
    assert out.split() == ["True", "True", "True"]
    assert "cputrain" not in err  # what torch's iterator says as it is collected half made


SMALL = """
from cputrain.errors import ResourceError
if __name__ == "__main__":
    limit, bytes = resource.{limit}, {bytes}
    if limit == resource.RLIMIT_AS:
        list(DataLoader(Rows(as_large_array), 4, num_workers=1))
        bytes += int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(limit, (bytes, bytes))
    try:
        loader = DataLoader(Rows(as_large_array), 4, num_workers=2)
        print([batch[:, 0].tolist() for batch in loader][-1])
    except ResourceError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("limit", "size", "expected"),
    [
        ("RLIMIT_FSIZE", 1 << 20, "Raise the limit on file sizes: ulimit -f unlimited."),
        ("RLIMIT_FSIZE", 1 << 28, "[20, 21, 22]"),
        ("RLIMIT_AS", 1 << 29, "[20, 21, 22]"),
        ("RLIMIT_AS", 1 << 20, "shared memory could not be made"),
    ],
)
def test_limits_on_memory_are_kept_or_told(
    tmp_path: Path, limit: str, size: int, expected: str
) -> None:
    code, out, err = ended(tmp_path, SMALL.format(limit=limit, bytes=size))
    assert code == 0, err
    assert expected in out
    assert "Traceback" not in err


def test_what_a_batch_is_made_of_can_be_pickled_again() -> None:
    (batch,) = DataLoader(Rows(_numbered, 4), batch_size=4, num_workers=1, collate_fn=untouched)
    assert_alike(pickle.loads(pickle.dumps(batch)), [_numbered(row) for row in range(4)])
