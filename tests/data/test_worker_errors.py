"""Whatever is raised in a worker reaches the script as with torch: type, text, and what follows."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from cputrain.data import DataLoader
from tests.data.samples import Rows


class TwoArgumentsError(Exception):
    """Cannot be made of one text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class KeywordOnlyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class WithMessageError(Exception):
    """Has what torch takes for a keyword of its constructor."""

    message = "said"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class WithStateError(ValueError):
    def __init__(self, text: str, state: Any = None) -> None:
        super().__init__(text)
        self.state = state or threading.Lock()


class NotDescribableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no description")


def _chained() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise LookupError("not found") from error


def _grouped() -> None:
    raise ExceptionGroup("several", [ValueError("first"), TypeError("second")])


def _raises(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


RAISES: dict[str, Callable[[], None]] = {
    "ValueError": _raises(ValueError("wrong")),
    "several lines": _raises(ValueError("wrong\nin several\nlines")),
    "KeyError of several lines": _raises(KeyError("a\nb")),
    "KeyError of a tuple": _raises(KeyError(("a", 1))),
    "OSError": _raises(OSError(2, "No such file", "name")),
    "UnicodeDecodeError": _raises(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")),
    "two arguments": lambda: _raises(TwoArgumentsError(1, 2))(),
    "keyword only": lambda: _raises(KeywordOnlyError(code=3))(),
    "a message": lambda: _raises(WithMessageError("said so"))(),
    "a lock": lambda: _raises(WithStateError("locked"))(),
    "no description": lambda: _raises(NotDescribableError())(),
    "StopIteration": _raises(StopIteration("over")),
    "StopAsyncIteration": _raises(StopAsyncIteration()),
    "GeneratorExit": _raises(GeneratorExit()),
    "chained": _chained,
    "grouped": _grouped,
    "AssertionError": _raises(AssertionError()),
    "MemoryError": _raises(MemoryError()),
    "RecursionError": _raises(RecursionError("maximum recursion depth exceeded")),
    "NotImplementedError": _raises(NotImplementedError()),
    "RuntimeError": _raises(RuntimeError("DataLoader worker (pid 1) made up")),
    "Warning": _raises(UserWarning("taken for an error")),
    "KeyboardInterrupt": _raises(KeyboardInterrupt()),
    "SystemExit": _raises(SystemExit(0)),
    "SystemExit 3": _raises(SystemExit(3)),
    "a number": lambda: int("text") and None,
    "torch's": lambda: torch.ones(2) + torch.ones(3) and None,
}


class Indexed(Rows):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(self._row, 12)
        self._work = work

    def _row(self, row: int) -> Any:
        if row == 5:
            self._work()
        return row


class Streamed(IterableDataset[Any]):
    """Rows of a generator, or of an iterator that fails at one of them."""

    def __init__(self, work: Callable[[], None], generated: bool) -> None:
        self._work = work
        self._generated = generated

    def __iter__(self) -> Iterator[Any]:
        return self._rows() if self._generated else _Steps(self._work)

    def _rows(self) -> Iterator[Any]:
        for row in range(12):
            if row == 5:
                self._work()
            yield row


class _Steps:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._row = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._row += 1
        if self._row == 5:
            self._work()
        if self._row == 12:
            raise StopIteration
        return self._row


def _in_collate(work: Callable[[], None]) -> Callable[[Any], Any]:
    def collate(rows: Any) -> Any:
        if 5 in rows:
            work()
        return rows

    return collate


def _in_init(work: Callable[[], None]) -> Callable[[int], None]:
    def init(worker: int) -> None:
        if worker == 0:
            work()

    return init


PLACES: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {
    "a row": lambda work: {"dataset": Indexed(work)},
    "a stream": lambda work: {"dataset": Streamed(work, generated=False)},
    "a generator": lambda work: {"dataset": Streamed(work, generated=True)},
    "collate_fn": lambda work: {"dataset": Rows(int, 12), "collate_fn": _in_collate(work)},
    "worker_init_fn": lambda work: {"dataset": Rows(int, 12), "worker_init_fn": _in_init(work)},
}


def _told(kind: Any, options: dict[str, Any]) -> list[Any]:
    """Every batch and error of one epoch with its frames, as long as there are any."""
    told: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterator = iter(kind(**options))
        errors = 0
        while errors < 3:
            try:
                batch = next(iterator)
            except StopIteration as error:
                told.append(("StopIteration", _comparable(str(error)), _frames(error)))
                break
            except BaseException as error:
                errors += 1
                text = _comparable("".join(map(str, error.args)))
                told.append((type(error).__name__, text, _frames(error)))
            else:
                told.append(batch)
    del iterator
    gc.collect()
    assert not multiprocessing.active_children()
    return told


def _frames(error: BaseException) -> list[str]:
    """Name the functions that a traceback shows below the script's own."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)[1:]]


def _comparable(text: str) -> str:
    """Without process ids and how each worker ended: torch says it if SIGCHLD came first."""
    ending = r"exited unexpectedly(: | with exit code \d+\. Details are lost due to).*"
    text = re.sub(ending, "exited unexpectedly", text, flags=re.DOTALL)
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    return re.sub(r"pid(\(s\))? [0-9, ]+", "pid ", text)


ENDS_WORKERS = ("GeneratorExit", "KeyboardInterrupt", "SystemExit", "SystemExit 3")
"""Those that torch's loop does not catch; the others are raised in the script."""

ANYWHERE = ("KeyError of several lines", "two arguments", "StopIteration", "SystemExit 3")

CASES = [
    (raised, place)
    for raised in RAISES
    for place in PLACES
    if place == "a row" or raised in ANYWHERE
]


@pytest.mark.parametrize(("raised", "place"), CASES)
def test_errors_of_workers_are_those_of_torch(raised: str, place: str) -> None:
    # lists, as torch cannot open the tensors of a worker that has ended meanwhile
    options = {"collate_fn": list, "batch_size": 2, "num_workers": 1}
    options |= PLACES[place](RAISES[raised])
    theirs, ours = (_told(kind, options) for kind in (TorchLoader, DataLoader))
    if raised in ENDS_WORKERS:  # how soon it is noticed decides how much had come
        theirs, ours = ([t[:2] for t in told if type(t) is tuple][:1] for told in (theirs, ours))
    assert ours == theirs


LOCK = threading.Lock()


def _unpicklable(options: dict[str, Any]) -> Callable[[Any], Any]:
    def begin(kind: Any) -> Any:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with pytest.raises((AttributeError, TypeError, pickle.PicklingError)) as raised:
                list(kind(num_workers=2, multiprocessing_context="spawn", **options))
        gc.collect()
        assert not multiprocessing.active_children()
        texts = [str(each.message) for each in warned]
        return raised.type, str(raised.value), [t for t in texts if "pickle" in t]

    return begin


UNPICKLABLE: dict[str, dict[str, Any]] = {
    "a dataset": {"dataset": Rows(lambda row: row)},
    "a dataset with a lock": {"dataset": [LOCK]},
    "collate_fn": {"dataset": [1, 2], "collate_fn": lambda rows: rows},
    "worker_init_fn": {"dataset": [1, 2], "worker_init_fn": lambda _: None},
}


@pytest.mark.parametrize("name", UNPICKLABLE)
def test_what_cannot_be_pickled_for_spawned_workers_is_told_as_by_torch(name: str) -> None:
    begin = _unpicklable(UNPICKLABLE[name])
    assert begin(DataLoader) == begin(TorchLoader)
