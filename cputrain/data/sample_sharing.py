"""Copying a dataset's list, dict or array of objects into shared memory, once for all workers."""

from __future__ import annotations

import gc
import operator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from cputrain.data.attribute_use import AttributeUse, UnknownUseError
from cputrain.data.packed_samples import SharedSamples
from cputrain.data.sample_columns import write_column, write_encoded
from cputrain.data.sample_keys import write_keys
from cputrain.data.sample_kinds import NotSharableError, estimated_bytes, require_sharable
from cputrain.data.sample_memory import SampleWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIN_ROWS = 4096
"""The smallest number of samples that are shared."""

MIN_BYTES = 4 << 20
"""The smallest size of the objects that are shared; for less, checking them costs too much."""

_MAX_PARTS = 1000
"""The largest number of elements of a list that are searched for datasets."""


class Replacement(NamedTuple):
    """The replacement of a container by shared samples in workers."""

    holder: Any
    """The object that has the container as an attribute; None if it is the dataset itself."""
    names: tuple[str, ...]
    """The names of the attributes that are the container."""
    container: Any
    shared: SharedSamples


class _Layout(NamedTuple):
    """A container's shared samples, and the keys and samples that they were written from."""

    container: Any
    keys: list[Any]
    samples: list[Any]
    shared: SharedSamples


class SampleSharing:
    """The shared samples of one loader, which are reused while the samples are identical."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}

    def replacements(self, dataset: Any, notes: list[str], *, is_forked: bool) -> list[Replacement]:
        """Write a dataset's samples to shared memory where this saves memory.

        Args:
            dataset: The loader's dataset.
            notes: Gets what is shared, and the reasons for what is not.
            is_forked: Whether workers are forked, rather than spawned.
        """
        replacements = []
        layouts: dict[int, _Layout] = {}
        for holder, names, container in _containers(dataset, notes, is_forked=is_forked):
            where = "the dataset" if holder is None else f"{type(holder).__name__}.{names[0]}"
            try:
                layout = self._layout_of(container)
            except NotSharableError as error:
                _note(notes, f"the samples in {where} are not put into shared memory: {error}")
                continue
            except Exception as error:  # of pickling, or of the system
                _note(notes, f"the samples in {where} are not put into shared memory: {error!r}")
                continue
            layouts[id(container)] = layout
            shared = layout.shared
            _note(
                notes,
                f"the {shared.num_rows:,} samples in {where} are in shared memory, "
                f"in {shared.memory.size / (1 << 20):.0f} MiB",
            )
            replacements.append(Replacement(holder, names, container, shared))
        # mutable samples may change before the next epoch
        self._layouts = {
            key: layout for key, layout in layouts.items() if not layout.shared.is_mutable
        }
        return replacements

    def _layout_of(self, container: Any) -> _Layout:
        """Return the shared samples of a container; raise NotSharableError if it must be copied."""
        keys = list(container) if type(container) is dict else []
        samples = list(container.values() if type(container) is dict else container)
        layout = self._layouts.get(id(container))
        if (
            layout is not None
            and layout.container is container
            and _are_identical(layout.keys, keys)
            and _are_identical(layout.samples, samples)
        ):
            return layout
        traits = require_sharable(samples, num_references=2)
        writer = SampleWriter()
        index = write_keys(keys, writer) if type(container) is dict else None
        write = write_encoded if traits.is_mutable else write_column
        column = write(samples, writer, is_builtin=traits.is_builtin)
        memory = writer.finish()
        if memory.size >= (estimate := estimated_bytes(samples) + estimated_bytes(keys)):
            raise NotSharableError(
                f"they take {estimate / (1 << 20):.0f} MiB, and would take "
                f"{memory.size / (1 << 20):.0f} MiB in shared memory"
            )
        shared = SharedSamples(
            memory, column, len(samples), traits.is_mutable, type(container), index
        )
        return _Layout(container, keys, [] if traits.is_mutable else samples, shared)


def _note(notes: list[str], text: str) -> None:
    """Append a note, unless an earlier epoch has."""
    if text not in notes:
        notes.append(text)


def _are_identical(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before, after))


def _containers(
    dataset: Any, notes: list[str], *, is_forked: bool
) -> Iterator[tuple[Any, tuple[str, ...], Any]]:
    """Yield holder, attribute names and container for each container that workers only index."""
    if _is_large(dataset):
        yield None, (), dataset
        return
    for holder in _datasets_within(dataset):
        large: dict[int, tuple[list[str], Any]] = {}
        for name, value in vars(holder).items():
            if _is_large(value):
                large.setdefault(id(value), ([], value))[0].append(name)
        if not large:
            continue
        kind: Any = type(holder)
        try:
            use = _use_of(kind)
        except UnknownUseError as error:
            _note(notes, f"the samples of {kind.__name__} are not put into shared memory: {error}")
            continue
        if not is_forked and not _is_pickled_plainly(kind):
            continue
        for names, container in large.values():
            other_names = [name for name in names if use.has_other_use(name) or hasattr(kind, name)]
            if other_names:
                _note(
                    notes,
                    f"the samples in {kind.__name__}.{other_names[0]} are not put into shared "
                    "memory: the dataset does more with it than index it and take its length",
                )
            # a forked worker copies no pages of a container that no method uses
            elif not is_forked or any(map(use.is_indexed, names)):
                yield holder, tuple(names), container


def _datasets_within(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets that its attributes hold, recursively."""
    seen: set[int] = set()
    pending = [dataset]
    while pending:
        holder = pending.pop()
        if id(holder) in seen or not hasattr(holder, "__dict__"):
            continue
        seen.add(id(holder))
        kind: Any = type(holder)
        if kind.__getattribute__ is object.__getattribute__:
            yield holder
        for value in list(vars(holder).values()):
            parts = value[:_MAX_PARTS] if type(value) in (list, tuple) else [value]
            pending += [part for part in parts if isinstance(part, Dataset)]


def _is_large(container: Any) -> bool:
    """Return whether an object is a list, dict or array of objects that is worth sharing."""
    kind = type(container)
    if kind is np.ndarray:
        if container.ndim != 1 or container.dtype != object:
            return False
    elif kind is not list and kind is not dict:
        return False
    if len(container) < MIN_ROWS:
        return False
    size = 0
    if kind is dict:
        size, container = estimated_bytes(list(container)), list(container.values())
    return size + estimated_bytes(container) >= MIN_BYTES


@cache
def _use_of(kind: Any) -> AttributeUse:
    return AttributeUse(kind)


def _is_pickled_plainly(kind: Any) -> bool:
    """Return whether pickling an object of a class pickles its attributes."""
    plain: Any = object
    return all(
        getattr(kind, name, None) is getattr(plain, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    )


@contextmanager
def gc_paused(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Disable garbage collection while a process is forked; `freeze_objects` enables it there."""
    if not replacements or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        _is_gc_paused.append(True)
        yield
    finally:
        _is_gc_paused.clear()
        gc.enable()


_is_gc_paused: list[bool] = []


def freeze_objects(replacements: Sequence[Replacement]) -> None:
    """Exclude inherited objects from garbage collection, in a forked worker.

    A collection writes to each object that it visits, which would copy its memory page.
    """
    if replacements:
        gc.freeze()
        if _is_gc_paused:
            gc.enable()


def replace_in_worker(replacements: Sequence[Replacement], dataset: Any) -> Any:
    """Replace containers by shared samples in a forked worker; return its dataset."""
    _replaced_containers.extend(replacements)
    for holder, names, _, shared in replacements:
        samples = shared.open()
        if holder is None:
            return samples
        vars(holder).update(dict.fromkeys(names, samples))
    return dataset


_replaced_containers: list[Replacement] = []
"""References to the containers: freeing one would write to each of its objects."""
