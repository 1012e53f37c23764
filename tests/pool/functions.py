"""What workers call, at the top of a module so that they can import it, pytest not being loaded."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cputrain import Pool

METHODS = ("fork", "forkserver", "spawn")


def double(x: Any) -> Any:
    return x + x


def add(x: Any, y: Any) -> Any:
    return x + y


def same(x: Any) -> Any:
    return x


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def wait_for(path: Path | None) -> None:
    """Wait until there is such a file."""
    while path is not None and not path.exists():
        time.sleep(0.01)


def pid(_: object = None) -> int:
    return os.getpid()


# ends


def end_at(number: int, way: str, item: int) -> int:
    """What it is given; at one number it ends its process."""
    if item == number:
        end(way)
    return 10 * item


def end(way: str) -> None:
    faulthandler.disable()  # of pytest, which would write to the terminal
    if way == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    elif way == "_exit":
        os._exit(3)
    elif way == "segfault":
        ctypes.string_at(0)
    elif way == "abort":
        os.abort()


def killed_once(mark: str, item: int) -> int:
    """The first process that does item 3 ends in it."""
    if item == 3 and not os.path.exists(mark):
        Path(mark).touch()
        end("SIGKILL")
    return item


def counted_death(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    end("SIGKILL")


def slow_pair(item: int) -> Any:
    time.sleep(0.002)
    return item, torch.full((4000,), item)


def ends_slowly(item: int) -> int:
    """Its process takes a second to end once it has been told to."""
    util.Finalize(None, time.sleep, (1,), exitpriority=0)
    return item


def deaf_to_sigterm(_: object = None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(100)


# raises


class LocalError(Exception):
    """An error that cannot be made again from what was pickled of it."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class DeadlyError(BaseException):
    pass


def raises(kind: str) -> Any:
    def hidden() -> Exception:
        class HiddenError(Exception):
            pass

        return HiddenError("nobody else knows this class")

    made = {
        "plain": lambda: ArithmeticError("plain words"),
        "own arguments": lambda: LocalError(1, 2),
        "hidden": hidden,
        "lock": lambda: ValueError(sys.stdin),
        "speechless": lambda: SpeechlessError("x"),
        "deadly": lambda: DeadlyError("all over"),
        "KeyboardInterrupt": lambda: KeyboardInterrupt("keys"),
        "SystemExit": lambda: SystemExit(3),
        "GeneratorExit": lambda: GeneratorExit("gen"),
        "StopIteration": lambda: StopIteration("stop"),
        "tensor": lambda: ValueError(torch.arange(5000)),
    }[kind]()
    raise made


def stops(kind: str) -> str:
    """Raises that kind of exception, or returns what it was given if it is empty."""
    if kind:
        raises(kind)
    return kind


def leaves(code: int) -> None:
    sys.exit(code)


class Unsendable:
    """What cannot be pickled, nor described."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")

    def __repr__(self) -> str:
        raise ValueError("not to be described")


class Bomb:
    """What can be sent, and not be received."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.reduced = call, args

    def __reduce__(self) -> Any:
        return self.reduced


def explode() -> None:
    """Only where the pool is."""
    if multiprocessing.parent_process() is None:
        raise ArithmeticError("boom")


def unsendable(kind: str) -> Any:
    if kind == "deep":
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested
    return {
        "function": lambda: lambda: None,
        "generator": lambda: (one for one in "abc"),
        "undescribed": Unsendable,
    }[kind]()


def bomb(kind: str) -> Any:
    return Bomb(explode) if kind == "raises" else Bomb(sys.exit, 3)


# what a worker is like


def threads_and_cpus(_: object) -> Any:
    return torch.get_num_threads(), os.sched_getaffinity(0), os.getpid()


def with_threads(size: int) -> float:
    torch.set_num_threads(2)
    x = torch.ones(size, size)
    y = torch.mm(x, x)
    return float((y + 1).sum())


def draws(_: object) -> tuple[float, float, float]:
    time.sleep(0.02)
    return torch.rand(1, dtype=torch.float64).item(), random.random(), float(np.random.rand())


def nested_sum(count: int) -> int:
    with Pool(2, context="fork") as pool:
        return sum(pool.map(double, range(count)))


def noisy_initializer(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    raise LookupError("no such data")


def raise_in_place(_: object) -> None:
    raise LookupError("no such data")


# tensors

KEPT: list[Any] = []


def kept(item: Any) -> int:
    """Keeps what it is given; how many there are."""
    KEPT.append(item)
    return len(KEPT)


def looked_at(_: object) -> list[list[float]]:
    """The least and the greatest of what was kept, and whose it is."""
    return [[os.getpid(), float(one.min()), float(one.max())] for one in KEPT]


def raise_and_keep(item: torch.Tensor) -> float:
    """Changes what it kept of the task before, and what it is given."""
    for one in KEPT:
        one.add_(7)
    total = float(item.sum())
    item.add_(1)
    KEPT[:] = [item]
    return total


def add_one(item: torch.Tensor) -> float:
    before = float(item.sum())
    item.add_(1)
    return before


def add_at(item: torch.Tensor, index: int) -> tuple[int, int]:
    """Writes; which process this is, and how many descriptors it has."""
    item[index] += 1
    return os.getpid(), len(os.listdir("/proc/self/fd"))


def add_at_once(pair: Any) -> tuple[int, int]:
    return add_at(*pair)


def descriptors_collected(_: object) -> int:
    """How many descriptors a collection closes in a worker."""
    time.sleep(0.01)
    before = descriptors()
    gc.collect()
    return before - descriptors()


def element(item: Any, index: int) -> float:
    return float(item[index])


def filled(number: int) -> torch.Tensor:
    return torch.full((8192,), number, dtype=torch.int64)


def filled_million(number: int) -> torch.Tensor:
    return torch.full((1 << 17,), number, dtype=torch.int64)


def filled_some(number: int) -> torch.Tensor:
    """Small; each tenth of 8 KiB and more, so that it lies in the arena."""
    return torch.full((2048 if number % 10 == 0 else 4,), number, dtype=torch.int64)


def total(item: Any) -> float:
    return float(item.detach().sum() if isinstance(item, torch.Tensor) else item.sum())


def linear(number: int) -> torch.nn.Module:
    made = torch.nn.Linear(600, 600)
    torch.nn.init.constant_(made.weight, number)
    return made


def parameter(number: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full((4000,), float(number)))


def step(model: torch.nn.Module) -> float:
    """Changes a model in place."""
    with torch.no_grad():
        for one in model.parameters():
            one.add_(1)
    return sum(float(one.detach().sum()) for one in model.parameters())


def of_views(views: dict[str, torch.Tensor]) -> list[bool]:
    """Whether what is written to one is seen through the others."""
    views["whole"].fill_(0)
    views["half"].fill_(5)
    return [
        bool((views["whole"][:5000] == 5).all()),
        bool((views["again"][:5000] == 5).all()),
        views["whole"].data_ptr() == views["again"].data_ptr(),
    ]


def shared_views(number: int) -> dict[str, torch.Tensor]:
    whole = torch.full((10_000,), number)
    return {"whole": whole, "half": whole[:5000], "again": whole}


# what a process is like


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shared_bytes() -> int:
    """Of this process's mappings of the arenas, what is in memory."""
    found, ours = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if "-" in line.split(" ", 1)[0]:
                ours = "memfd:cputrain" in line
            elif ours and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def in_session(leader: int) -> list[int]:
    """Processes that run, of those that a script has started, itself included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def gone(leader: int, seconds: float) -> bool:
    """Whether all of them end in that time."""
    end_of_wait = time.monotonic() + seconds
    while in_session(leader):
        if time.monotonic() > end_of_wait:
            return False
        time.sleep(0.02)
    return True


def until(condition: Any, seconds: float = 20) -> None:
    """Waits for something to become true."""
    end_of_wait = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_of_wait, "it has not happened"
        time.sleep(0.01)


def who(*_: object) -> tuple[str, tuple[int, ...]]:
    """The worker's name and number."""
    return multiprocessing.current_process().name, multiprocessing.current_process()._identity


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def add_one_to_array(item: Any) -> float:
    before = float(item.sum())
    item += 1
    return before


def first_kept(_: object) -> list[float]:
    time.sleep(0.01)
    return [os.getpid(), float(len(KEPT))]


def grown(items: list[int]) -> int:
    """How long a list is after something has been added to it."""
    items.append(1)
    return len(items)


def first_of(items: list[int]) -> int:
    """The first item."""
    return items[0]


def first_or_wait(folder: Path) -> None:
    """Return to the first who calls it; and to all, once `folder/go` is there."""
    try:
        (folder / "first").mkdir()
    except FileExistsError:
        until((folder / "go").exists, 60)
