"""What a dataset does while it makes a sample, beyond making it."""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

FileState = tuple[str, int, int]
"""A file's path, when it was changed, in nanoseconds, and its size in bytes."""


DRAWS = "random numbers are drawn for them"


class SampleWatch:
    """Watches the calls that make samples.

    Args:
        generators: of random numbers that the dataset holds, beside those of the process.
    """

    def __init__(self, generators: Sequence[Any]) -> None:
        numpy: Any = np.random
        self._generators = [
            random._inst,
            numpy.mtrand._rand,
            torch.default_generator,
            *generators,
        ]
        self.attributes: dict[str, Any] = {}
        """Of the dataset, after the latest sample."""

    def make(self, dataset: Any, index: int) -> tuple[Any, str, tuple[FileState, ...]]:
        """Make a sample; return it, what makes it another one each time, and the files it is of.

        The second is empty if nothing is known to.
        """
        before, self.attributes = self._states(), attributes_of(dataset)
        _install()
        opened = _watching.opened = []
        try:
            sample = dataset[index]
        finally:
            _watching.opened = None
        attributes, self.attributes = self.attributes, attributes_of(dataset)
        if not self._are_at(before):
            return sample, DRAWS, ()
        changed = _first_change(attributes, self.attributes)
        if changed:
            return sample, f"making one changes {changed}", ()
        return sample, "", tuple(map(file_state, dict.fromkeys(opened)))

    def who_draws(self, dataset: Any, index: int) -> str:
        """Make a sample to see which function draws random numbers; return a sentence, or ""."""
        before = self._states()
        found: list[str] = []

        def look(frame: FrameType, event: str, _: Any) -> None:
            if event not in ("return", "c_return") or found or self._are_at(before):
                return
            if not str(frame.f_globals.get("__name__")).startswith("cputrain."):
                # (in place of torch's own, there may be functions of ours, which split draws)
                owner = frame.f_locals.get("self")
                name = frame.f_code.co_qualname if owner is None else type(owner).__name__
                found.append(f"{name} draws random numbers")

        with self.restored():
            profiler = sys.getprofile()
            sys.setprofile(look)
            try:
                dataset[index]
            except Exception as error:  # the first time it went well: whatever differs is random
                found.append(f"making one again raises {type(error).__name__}")
            finally:
                sys.setprofile(profiler)
        return found[0] if found else ""

    def _are_at(self, states: list[Any]) -> bool:
        return _are_equal(states, self._states())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Leave random states as they are now."""
        before = self._states()
        try:
            yield
        finally:
            if not self._are_at(before):
                for generator, state in zip(self._generators, before, strict=True):
                    _set_state(generator, state)

    def _states(self) -> list[Any]:
        return list(map(_state_of, self._generators))


def file_state(path: str) -> FileState:
    """Return a file's path, and what changes when it does."""
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, -1
    return path, status.st_mtime_ns, status.st_size


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, (np.random.RandomState, torch.Generator)):
        generator.set_state(state)
    else:
        generator.setstate(state)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return all(map(_are_equal, one, other))
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    return bool(one == other)


def attributes_of(dataset: Any) -> dict[str, Any]:
    """Return what a dataset holds, and the datasets that it holds, for a quick look at changes.

    Numbers and strings are as they are; of all else it is told which object it is, and how long.
    """
    found: dict[str, Any] = {}
    pending, seen = [(type(dataset).__name__, dataset)], set()
    while pending:
        where, holder = pending.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            at = f"{where}.{name}"
            if isinstance(value, (bool, int, float, str, bytes, type(None))):
                found[at] = value
                continue
            found[at] = id(value), _length(value)
            if isinstance(value, _WITHOUT_PARTS):
                continue
            if hasattr(value, "__dict__") and len(seen) < _MAX_SEEN:
                pending.append((at, value))
    return found


_MAX_SEEN = 100
"""Objects that a dataset holds that are looked at."""


_WITHOUT_PARTS = (type, ModuleType, FunctionType, torch.Tensor, np.ndarray, list, dict)


def _length(value: Any) -> int:
    """Return what changes with what a container holds."""
    if isinstance(value, torch.Tensor):
        return -1 if value.is_inference() else value._version
    return len(value) if isinstance(value, (list, tuple, dict, set, np.ndarray)) else 0


def _first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    for name in (*before, *after):
        if name not in before:
            if any(name.startswith(one + ".") and before[one] is None for one in before):
                continue
            return name
        # (what was None may have been opened)
        if before[name] != after.get(name) and not (
            before[name] is None and isinstance(after.get(name), tuple)
        ):
            return name
    return ""


class _Watching:
    """The files that this process opens while a sample is made."""

    opened: list[str] | None = None
    is_installed = False


_watching = _Watching()


def _install() -> None:
    if not _watching.is_installed:
        _watching.is_installed = True
        sys.addaudithook(_hear)  # it stays for as long as the process runs


def _hear(event: str, args: tuple[Any, ...]) -> None:
    opened = _watching.opened
    if opened is not None and event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
        opened.append(os.path.abspath(os.fsdecode(args[0])))
