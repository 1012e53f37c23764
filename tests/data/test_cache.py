"""`cache=`: samples that come out the same are read, all others are made, and nobody is fooled."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from cputrain.data import DataLoader, cached_dataset, sample_format, sample_sharing
from cputrain.data.sample_files import SampleFile, SampleFileWriter
from cputrain.data.sample_store import SharedCacheState
from cputrain.data.sample_watch import attribute_summary
from cputrain.errors import UsageError
from tests.data.alike import assert_alike
from tests.data.both import Loader, assert_same

SEED = int(os.environ.get("CASES_SEED") or random.randrange(1 << 32))

COUNT = 60

MADE = multiprocessing.Value("q")
"""Samples that were made, in any process."""


class Samples(Dataset[Any]):
    """Makes a sample of its index."""

    def __init__(self, make: Callable[[int], Any], count: int = COUNT) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def _image(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 5, 7), index, dtype=torch.uint8), index % 10


def _counted_image(index: int) -> tuple[torch.Tensor, int]:
    count_one()
    return _image(index)


def _large(index: int) -> torch.Tensor:
    return torch.full((10_000,), float(index))


def _many_types(index: int) -> dict[str, Any]:
    picture = torch.arange(60.0).reshape(3, 4, 5) + index
    return {
        "permuted": picture.permute(1, 2, 0),
        "half": picture.to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(index),
        "array": np.asfortranarray(picture.numpy()),
        "strings": np.array([str(index), "é"]),
        "date": np.datetime64("2026-01-01") + index,
        "number": np.float32(index / 3),
        "plain": (index, -index / 7, 1 << 80, True, None, b"\0\xff", "\ud800é", 2j, [], {}, ()),
        "nan": torch.tensor([float("nan"), -0.0]),
    }


def _ragged(index: int) -> list[Any]:
    return [torch.arange(index % 5), {"boxes": [[index] * 4] * (index % 3)}]


KINDS = {"images": _image, "many types": _many_types, "ragged": _ragged}


def _keep(samples: Any) -> Any:
    """Collate nothing."""
    return samples


def _rows(seed: int = SEED) -> list[int]:
    return random.Random(seed).choices(range(COUNT), k=40)


def _epochs(dataset: Any, cache: Any, count: int = 3, **options: Any) -> Callable[[Loader], Any]:
    """Return what makes some epochs, of which all but the first are read."""
    options = {"batch_size": 7, "sampler": _rows(), **options}

    def work(loader: Loader) -> Any:
        if loader is not DataLoader:
            made = loader(dataset, **options)
            return [list(made) for _ in range(count)]
        ours = DataLoader(dataset, cache=cache, **options)
        batches = [list(ours) for _ in range(count)]
        assert not ours.stats().notes
        assert ours.stats().cached >= 0.9 * (count - 1) * len(_rows())
        return batches

    return work


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_torch(kind: str, workers: int, where: str, tmp_path: Path) -> None:
    cache = "memory" if where == "memory" else tmp_path
    dataset = Samples(KINDS[kind])
    assert_same(_epochs(dataset, cache, num_workers=workers, collate_fn=_keep))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_all_start_methods_share_it(method: str, persistent: bool) -> None:
    options = {"num_workers": 2, "multiprocessing_context": method}
    dataset = Samples(_image)
    assert_same(_epochs(dataset, "memory", persistent_workers=persistent, **options))


def test_rows_without_batches_and_parts_of_other_datasets() -> None:
    parts = [Samples(_image), Samples(_image, 20)]
    whole = Subset(ConcatDataset(parts), list(range(0, 80, 2)))
    rows = random.Random(SEED).choices(range(len(whole)), k=40)
    assert_same(_epochs(whole, "memory", sampler=rows))
    assert_same(_epochs(whole, "memory", sampler=rows, batch_size=None, num_workers=2))


def count_one() -> None:
    """A sample was made. (Not seen by who looks for what processes share: see `_unseen`.)"""
    with _unseen().get_lock():
        _unseen().value += 1


def _unseen() -> Any:
    return sys.modules[__name__].__dict__["MADE"]


def _num_made(work: Callable[[], Any]) -> int:
    before = MADE.value
    work()
    return int(MADE.value - before)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_kept_is_not_made_again(
    workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cached_dataset, "RECHECK_EVERY", 1 << 30)
    for cache in ("memory", tmp_path):
        loader = DataLoader(Samples(_counted_image), cache=cache, num_workers=workers)
        assert _num_made(lambda: list(loader)) >= COUNT  # noqa: B023
        assert _num_made(lambda: list(loader)) == 0  # noqa: B023
        assert loader.stats().cached == COUNT
        assert loader.stats().cache_bytes >= COUNT * 105
    again = DataLoader(Samples(_counted_image), cache=tmp_path, num_workers=workers)
    assert _num_made(lambda: list(again)) == 0


def test_a_sample_belongs_to_its_taker() -> None:
    loader = DataLoader(Samples(_image), cache="memory", batch_size=None)
    for _ in range(3):
        for index, (image, _) in enumerate(loader):
            assert (image == index).all()
            image.add_(1)


def test_random_states_are_those_of_torch() -> None:
    options = {"shuffle": True, "sampler": None, "generator": None}
    for workers in (0, 2):
        assert_same(_epochs(Samples(_image), "memory", num_workers=workers, **options))


# what is refused


class RandomFlip:
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.flip(1) if self.draw() < 0.5 else image


class Flipped(Samples):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(_image)
        self.transform = RandomFlip(draw)

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return self.transform(image), label


def _torch_draw() -> float:
    return torch.rand(()).item()


OWN = np.random.default_rng(0)


def _own_draw() -> float:
    return OWN.random()


class Rarely(Samples):
    """Draws for a few samples only."""

    def __getitem__(self, index: int) -> Any:
        return _image(index)[0], random.random() if index == 11 else 0.0


class Counting(Samples):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls


class Asking(Samples):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return index, -1 if info is None else info.id


class Timed(Samples):
    def __getitem__(self, index: int) -> Any:
        return index, time.perf_counter_ns()


class Batched(Samples):
    def __getitems__(self, rows: list[int]) -> Any:
        return [_image(row) for row in rows]


TOTAL = [0]


def _from_a_global(index: int) -> int:
    TOTAL[0] += 1
    return TOTAL[0]


class Odd:
    pass


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "python's": (lambda: Flipped(random.random), "RandomFlip draws random numbers"),
    "numpy's": (lambda: Flipped(np.random.rand), "RandomFlip draws random numbers"),
    "torch's": (lambda: Flipped(_torch_draw), "_torch_draw draws random numbers"),
    "a generator": (lambda: Flipped(OWN.random), "RandomFlip draws random numbers"),
    "a global generator": (lambda: Flipped(_own_draw), "_own_draw draws random numbers"),
    "rarely": (lambda: Rarely(_image), "Rarely draws random numbers"),
    "counting": (lambda: Counting(_image), "loading a sample changes Counting.calls"),
    "asking": (lambda: Asking(_image), "get_worker_info"),
    "the time": (lambda: Timed(_image), "loading a sample twice gives different values"),
    "batched": (lambda: Batched(_image), "__getitems__"),
    "a global": (lambda: Samples(_from_a_global), "loading a sample twice gives different values"),
    "an object": (lambda: Samples(_odd), "Odd"),
    "shared": (lambda: Samples(torch.zeros(COUNT).share_memory_().__getitem__), "shared"),
    "views": (lambda: Samples(_view), "not dense in memory"),
}


def _odd(index: int) -> Odd:
    return Odd()


def _view(index: int) -> Any:
    return torch.zeros(9, 9)[:, ::2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_and_is_as_torch_has_it(
    name: str, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    make, reason = REFUSED[name]

    def work(loader: Loader) -> Any:
        TOTAL[0] = 0
        OWN.bit_generator.state = np.random.default_rng(0).bit_generator.state
        own = {"cache": "memory"} if loader is DataLoader else {}
        made: Any = loader(make(), collate_fn=_keep, num_workers=workers, **own)
        batches = [list(made) for _ in range(2)]
        if loader is DataLoader:
            (note,) = made.stats().notes
            assert reason in note
            assert "are not cached" in note
        return None if name in ("the time", "an object", "a global") else batches

    assert_same(work)


def _offset(_: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.offset = info.id


class Offset(Samples):
    offset = 0

    def __getitem__(self, index: int) -> Any:
        return index + 1000 * self.offset


def test_what_worker_init_fn_changes_is_seen() -> None:
    loader = DataLoader(Offset(_image), num_workers=2, cache="memory", worker_init_fn=_offset)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == [row + 1000 * (row % 2) for row in range(COUNT)]
    assert "worker_init_fn changes Offset.offset" in loader.stats().notes[0]


class Seen(Samples):
    def __getitem__(self, index: int) -> Any:
        return index


def _look(_: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    assert type(info.dataset) is Seen


def test_workers_see_the_dataset_of_the_script() -> None:
    loader = DataLoader(Seen(_image), num_workers=2, cache="memory", worker_init_fn=_look)
    assert [len(list(loader)) for _ in range(2)] == [COUNT] * 2


# what changes


@pytest.mark.parametrize("workers", [0, 2])
def test_what_changes_shows(workers: int, tmp_path: Path) -> None:
    """Attributes, and what a function of the dataset looks at."""

    def work(loader: Loader) -> Any:
        dataset = Scaled()
        own = {"cache": tmp_path} if loader is DataLoader else {}
        made: Any = loader(dataset, num_workers=workers, batch_size=4, **own)
        batches = [list(made)]
        dataset.scale = 3
        batches += [list(made), list(made)]
        dataset.table[5] = 99
        batches.append(list(made))
        SHIFT[0] = 4
        batches += [list(made), list(made)]
        SHIFT[0] = 0
        batches.append(list(made))
        return batches

    assert_same(work)


SHIFT = [0]


class Scaled(Dataset[int]):
    def __init__(self) -> None:
        self.scale = 2
        self.table = list(range(COUNT))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> int:
        return self.scale * self.table[index] + SHIFT[0]


def test_what_changes_between_batches_shows() -> None:
    def work(loader: Loader) -> Any:
        dataset = Scaled()
        own = {"cache": "memory"} if loader is DataLoader else {}
        made: Any = loader(dataset, batch_size=4, **own)
        batches = [list(made)]
        for number, batch in enumerate(made):
            dataset.scale = number
            batches.append(batch)
        return batches

    assert_same(work)


def _class_of(body: str) -> Any:
    space: dict[str, Any] = {"Dataset": Dataset, "COUNT": COUNT}
    lines = ["class Made(Dataset):", "    def __len__(self): return COUNT", body]
    exec("\n".join(lines), space)
    return space["Made"]()


def test_another_code_of_the_same_name_is_another_dataset(tmp_path: Path) -> None:
    for factor in (2, 3):
        made = _class_of(f"    def __getitem__(self, row): return row * {factor}")
        for _ in range(2):
            loader = DataLoader(made, cache=tmp_path, batch_size=None)
            assert list(loader) == [factor * row for row in range(COUNT)]


class Files(Dataset[bytes]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> bytes:
        return (self.folder / str(index)).read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_file_that_changes_is_read_again(where: str, workers: int, tmp_path: Path) -> None:
    for row in range(9):
        (tmp_path / str(row)).write_bytes(b"old")
    cache = "memory" if where == "memory" else tmp_path / "cache"
    loader = DataLoader(Files(tmp_path), cache=cache, num_workers=workers, batch_size=None)
    assert [list(loader) for _ in range(2)] == [[b"old"] * 9] * 2
    assert loader.stats().cached
    (tmp_path / "4").write_bytes(b"newer")
    assert [list(loader) for _ in range(2)] == [[b"old"] * 4 + [b"newer"] + [b"old"] * 4] * 2
    (tmp_path / "5").unlink()
    with pytest.raises(FileNotFoundError):
        list(loader)


def test_a_sample_that_changes_for_no_reason_is_found_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_dataset, "RECHECK_EVERY", 4)
    loader = DataLoader(Samples(_of_the_weather), cache="memory")
    list(loader)
    os.environ["WEATHER"] = "sun"
    try:
        for _ in range(2):
            list(loader)
        assert set(torch.cat(list(loader)).tolist()) == {len("sun")}
    finally:
        del os.environ["WEATHER"]
    assert "differs from the same sample loaded again" in loader.stats().notes[0]
    assert "differs from the same sample loaded again" in capfd.readouterr().err


def test_why_a_cache_is_off_is_known_to_every_process() -> None:
    state = SharedCacheState.create(2)
    assert (state.is_disabled, state.reason) == (False, "")
    assert state.disable("the samples of Files – “all” – are not cached")
    other = pickle.loads(ForkingPickler.dumps(state))
    assert not other.disable("for another reason")
    assert (other.is_disabled, other.reason) == (True, state.reason)
    assert other.reason == "the samples of Files – “all” – are not cached"


def test_a_sample_that_can_no_longer_be_encoded_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_dataset, "RECHECK_EVERY", 4)
    loader = DataLoader(Samples(_of_the_season), cache="memory", batch_size=None)
    list(loader)
    monkeypatch.setenv("SEASON", "winter")
    for _ in range(2):
        list(loader)
    assert all(callable(sample) for sample in loader)
    assert "differs from the same sample loaded again" in loader.stats().notes[0]


def _of_the_season(index: int) -> Any:
    return (lambda: index) if "SEASON" in os.environ else index


def _of_the_weather(index: int) -> int:
    return len(os.environ.get("WEATHER", "rain"))


# faults


def _error_at_seven(index: int) -> int:
    if index == 7:
        raise KeyError("seven")
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_that_of_torch(workers: int) -> None:
    def work(loader: Loader) -> Any:
        own = {"cache": "memory"} if loader is DataLoader else {}
        made: Any = loader(Samples(_error_at_seven), num_workers=workers, **own)
        found: list[Any] = []
        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                found.extend(made)
            found.append(str(caught.value))
            assert "cputrain/" not in str(caught.value)
        return found

    assert_same(work)


SCRIPT = """
import sys, time, torch
from torch.utils.data import Dataset
from cputrain.data import DataLoader

class Slow(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        return torch.full((1000,), index)

if __name__ == "__main__":
    folder, workers = sys.argv[1], int(sys.argv[2])
    loader = DataLoader(Slow(), cache=folder, batch_size=None, num_workers=workers)
    for _ in range(2):
        for row, sample in enumerate(loader):
            assert (sample == row).all() and len(sample) == 1000
            print(row, flush=True)
    print("read", loader.stats().cached)
"""


def _script(tmp_path: Path, *args: object) -> list[str]:
    script = tmp_path / "slow.py"
    script.write_text(SCRIPT)
    return [sys.executable, str(script), *map(str, args)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_killed_leaves_only_what_is_right(workers: int, tmp_path: Path) -> None:
    command = _script(tmp_path, tmp_path / "cache", workers)
    for row in (3, 150, 390):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if int(line) >= row:
                    break
            run.send_signal(signal.SIGKILL)
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout.split()[-1]) > 500


def test_two_runs_write_at_the_same_time(tmp_path: Path) -> None:
    command = _script(tmp_path, tmp_path / "cache", 1)
    runs = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [run.wait() for run in runs] == [0] * 3
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout.split()[-1]) > 700


@pytest.mark.long
def test_what_was_damaged_is_made_again(tmp_path: Path) -> None:
    draws = random.Random(SEED)
    dataset = Samples(_image)
    expected = list(DataLoader(dataset))
    print(f"CASES_SEED={SEED}")
    for _ in range(40):
        loader = DataLoader(dataset, cache=tmp_path)
        assert_alike(list(loader), expected)
        assert not loader.stats().notes
        for path in tmp_path.glob("*/*"):
            data = bytearray(path.read_bytes())
            if draws.random() < 0.3:
                del data[draws.randrange(len(data) + 1) :]
            for _ in range(draws.choice([0, 1, 5])):
                if data:
                    data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
            path.write_bytes(data)


def test_samples_in_memory_are_not_summed(tmp_path: Path) -> None:
    """A checksum of a large sample takes as long as to copy it."""
    in_memory, in_files = SampleFile.in_memfd(), SampleFile.create(str(tmp_path / "samples"))
    for file, is_summed in ((in_memory, False), (in_files, True)):
        SampleFileWriter(file).add(3, [b"abc", b"def"])
        (entry,) = file.new_entries()
        assert bool(entry["checksum"]) is is_summed
        data = file.read(entry, is_verified=False)
        assert data is not None
        assert data.tobytes() == b"abcdef"


def test_a_full_disk_ends_the_writing_and_nothing_else(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    loader = DataLoader(Samples(_large), cache=tmp_path)
    expected = list(DataLoader(Samples(_large)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        epochs = [list(loader) for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert_alike(epochs, [expected] * 3)
    assert 0 < loader.stats().cached < COUNT
    assert "no more samples are cached" in loader.stats().notes[0]
    assert_alike([list(DataLoader(Samples(_large), cache=tmp_path))], [expected])


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_no_more_is_kept_than_was_allowed(where: str, tmp_path: Path) -> None:
    cache = "memory" if where == "memory" else tmp_path
    loader = DataLoader(Samples(_image), cache=cache, cache_bytes=4000, num_workers=2)
    expected = list(DataLoader(Samples(_image)))
    assert_alike([list(loader) for _ in range(3)], [expected] * 3)
    assert 3000 < loader.stats().cache_bytes <= 4000 + 500  # (two may write at once)
    assert loader.stats().cached
    assert "(cache_bytes) are reached" in loader.stats().notes[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_may_be_deleted_at_any_time(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(Samples(_image), cache=tmp_path / "cache", num_workers=workers)
    expected = list(DataLoader(Samples(_image)))
    for _ in range(2):
        for _ in range(2):
            assert_alike(list(loader), expected)
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number == 9:
                shutil.rmtree(tmp_path / "cache")
                assert loader.stats().cache_bytes == 0
        assert_alike(batches, expected)


def test_more_workers_find_what_fewer_have_kept() -> None:
    loader = DataLoader(Samples(_image), cache="memory")
    expected = list(loader)
    assert _num_cached(loader) == 0
    loader.num_workers, loader.prefetch_factor = 2, 2
    assert_alike(list(loader), expected)
    assert _num_cached(loader) >= 0.9 * COUNT


def _num_cached(loader: DataLoader[Any]) -> int:
    return loader.stats().cached


class Holder(Samples):
    """Holds what is not to be looked into for each sample, or cannot be."""

    def __init__(self) -> None:
        super().__init__(_image)
        self.module = np
        with torch.inference_mode():
            self.table = torch.zeros(3)
        self.names = np.array([f"sample {row}" for row in range(COUNT)] + [None], dtype=object)

    def __getitem__(self, index: int) -> Any:
        return index, self.names[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_whatever_a_dataset_holds(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_sharing, "MIN_ROWS", COUNT)
    monkeypatch.setattr(sample_sharing, "MIN_BYTES", 0)
    dataset = Holder()
    assert not [name for name in attribute_summary(dataset) if name.startswith("Holder.module.")]

    def work(loader: Loader) -> Any:
        own = {"cache": "memory"} if loader is DataLoader else {}
        made: Any = loader(dataset, num_workers=workers, **own)
        batches = [list(made) for _ in range(3)]
        if loader is DataLoader:
            assert made.stats().cached
        return batches

    assert_same(work)


class Endlessly(Samples):
    def __len__(self) -> int:
        return sys.maxsize


def test_a_length_that_means_no_end() -> None:
    loader = DataLoader(Endlessly(_image), cache="memory", sampler=range(5))
    assert len(list(loader)) == 5
    assert "more than" in loader.stats().notes[0]


def test_nothing_is_left(tmp_path: Path) -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    for cache in ("memory", tmp_path):
        for workers in (0, 2):
            loader = DataLoader(Samples(_image), cache=cache, num_workers=workers)
            assert [len(list(loader)) for _ in range(2)] == [COUNT] * 2
            del loader
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_loader_that_is_pickled_takes_no_samples_along() -> None:
    loader = DataLoader(Samples(_image), cache="memory")
    plain = DataLoader(Samples(_image))
    expected = [list(loader) for _ in range(2)]
    assert_alike([list(plain) for _ in range(2)], expected)
    data = pickle.dumps(loader)
    assert len(data) <= len(pickle.dumps(plain)) + 200
    again = pickle.loads(data)
    assert_alike([list(again) for _ in range(2)], expected)
    assert again.stats().cached == COUNT


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(9))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cache": 3}, 'cache must be "memory" or a folder'),
        ({"cache": ""}, 'cache must be "memory" or a folder'),
        ({"cache": "/dev/null/x"}, 'cache must be "memory" or a folder'),
        ({"cache": "memory", "cache_bytes": 0}, "cache_bytes must be a number of bytes above 0"),
        ({"cache": "memory", "cache_bytes": "1G"}, "cache_bytes must be a number of bytes"),
        ({"cache_bytes": 5}, "cache_bytes has no effect without cache"),
        ({"cache": "memory", "dataset": Endless()}, "Endless, which is iterable"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("(", "\\(").replace(")", "\\)")):
        DataLoader(**{"dataset": Samples(_image), **options})


def test_rows_in_memory_need_no_cache() -> None:
    loader = DataLoader(TensorDataset(torch.arange(9)), cache="memory")
    assert len(list(loader)) == 9
    assert "need no cache" in loader.stats().notes[0]


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(),
        st.complex_numbers(allow_nan=False), st.binary(),
        st.builds(
            lambda shape, dtype: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
            st.lists(st.integers(0, 4), max_size=3),
            st.sampled_from(["?", "i1", "u8", "f2", "f8", "c16", "U3", "M8[s]"]),
        ),
        st.builds(
            lambda shape, order, dtype: torch.arange(np.prod(shape, dtype=int))
            .reshape(shape).to(dtype).permute(sorted(range(len(shape)), key=lambda d: order[d])),
            st.lists(st.integers(0, 4), max_size=4), st.permutations(range(4)),
            st.sampled_from(
                [torch.bool, torch.int32, torch.bfloat16, torch.float64, torch.complex64]
            ),
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES)
def test_what_is_packed_comes_back(value: Any) -> None:
    try:
        data = sample_format.encode_sample(value)
    except sample_format.NotEncodableError:
        return
    back = sample_format.decode_sample(np.frombuffer(bytearray(data), np.uint8))
    assert_alike(back, value)
    assert sample_format.encode_sample(back) == data
