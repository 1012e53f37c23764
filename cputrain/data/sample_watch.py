"""Detection of side effects of loading a sample: random numbers, attributes and opened files."""

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
"""A file's path, its modification time in nanoseconds, and its size in bytes."""


DRAWS = "random numbers are drawn for them"
"""The reason that `SampleWatch.load` returns for a sample that draws random numbers."""


class SampleWatch:
    """Loads samples and compares random states and attributes before and after.

    Args:
        generators: Random number generators that the dataset holds, beside the default ones.
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
        """The summary of the dataset's attributes after the latest sample."""

    def load(self, dataset: Any, index: int) -> tuple[Any, str, tuple[FileState, ...]]:
        """Return a sample, a reason not to cache it or "", and the files that were read."""
        before, self.attributes = self._states(), attribute_summary(dataset)
        _install_audit_hook()
        opened = _file_log.opened = []
        try:
            sample = dataset[index]
        finally:
            _file_log.opened = None
        attributes, self.attributes = self.attributes, attribute_summary(dataset)
        if not self._have_states(before):
            return sample, DRAWS, ()
        changed = _first_change(attributes, self.attributes)
        if changed:
            return sample, f"loading a sample changes {changed}", ()
        return sample, "", tuple(map(file_state, dict.fromkeys(opened)))

    def find_draw(self, dataset: Any, index: int) -> str:
        """Load a sample again to find what draws random numbers; return a sentence or ""."""
        before = self._states()
        sentences: list[str] = []

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event not in ("return", "c_return") or sentences or self._have_states(before):
                return
            if not str(frame.f_globals.get("__name__")).startswith("cputrain."):
                # functions of this package may be patches of torch's, which draw for replicas
                owner = frame.f_locals.get("self")
                name = frame.f_code.co_qualname if owner is None else type(owner).__name__
                sentences.append(f"{name} draws random numbers")

        with self.preserved_states():
            profiler = sys.getprofile()
            sys.setprofile(profile)
            try:
                dataset[index]
            except Exception as error:  # it did not raise the first time, so it is random
                sentences.append(f"loading a sample again raises {type(error).__name__}")
            finally:
                sys.setprofile(profiler)
        return sentences[0] if sentences else ""

    def _have_states(self, states: list[Any]) -> bool:
        """Return whether the generators are in these states."""
        return _are_equal(states, self._states())

    @contextmanager
    def preserved_states(self) -> Iterator[None]:
        """Restore the random states at the end of the block."""
        before = self._states()
        try:
            yield
        finally:
            if not self._have_states(before):
                for generator, state in zip(self._generators, before, strict=True):
                    _set_state(generator, state)

    def _states(self) -> list[Any]:
        return list(map(_state_of, self._generators))


def file_state(path: str) -> FileState:
    """Return a file's path, modification time and size; size -1 if it does not exist."""
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


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two random states are equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return all(map(_are_equal, a, b))
    if isinstance(a, np.ndarray):
        return bool((a == b).all())
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    return bool(a == b)


def attribute_summary(dataset: Any) -> dict[str, Any]:
    """Return a summary of the attributes of a dataset and of the objects in it, to detect changes.

    The keys are paths such as `Photos.transform.size`. The values are numbers and strings
    themselves; for other objects, their `id` and length.
    """
    summary: dict[str, Any] = {}
    pending, seen = [(type(dataset).__name__, dataset)], set()
    while pending:
        path, holder = pending.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            value_path = f"{path}.{name}"
            if isinstance(value, (bool, int, float, str, bytes, type(None))):
                summary[value_path] = value
                continue
            summary[value_path] = id(value), _length(value)
            if isinstance(value, _WITHOUT_PARTS):
                continue
            if hasattr(value, "__dict__") and len(seen) < _MAX_OBJECTS:
                pending.append((value_path, value))
    return summary


_MAX_OBJECTS = 100
"""Objects in a dataset whose attributes are summarized."""


_WITHOUT_PARTS = (type, ModuleType, FunctionType, torch.Tensor, np.ndarray, list, dict)


def _length(value: Any) -> int:
    """Return a container's length or a tensor's version: a number that most changes change."""
    if isinstance(value, torch.Tensor):
        return -1 if value.is_inference() else value._version
    return len(value) if isinstance(value, (list, tuple, dict, set, np.ndarray)) else 0


def _first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the path of the first attribute that differs between two summaries, or ""."""
    for name in (*before, *after):
        if name not in before:
            if any(name.startswith(path + ".") and before[path] is None for path in before):
                continue
            return name
        # an attribute that was None may hold a file or a library that is opened on first use
        if before[name] != after.get(name) and not (
            before[name] is None and isinstance(after.get(name), tuple)
        ):
            return name
    return ""


class _FileLog:
    """The paths of files that this process opens while a sample is loaded."""

    opened: list[str] | None = None
    """None while no sample is loaded."""
    is_installed = False
    """Whether the audit hook is installed."""


_file_log = _FileLog()


def _install_audit_hook() -> None:
    if not _file_log.is_installed:
        _file_log.is_installed = True
        sys.addaudithook(_on_audit_event)  # audit hooks cannot be removed


def _on_audit_event(event: str, args: tuple[Any, ...]) -> None:
    opened = _file_log.opened
    if opened is not None and event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
        opened.append(os.path.abspath(os.fsdecode(args[0])))
