"""Samples in a list, dict or array of objects of a dataset, laid out once for all workers."""

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
"""Samples below which nothing is laid out."""

MIN_BYTES = 4 << 20
"""Bytes of objects below which a worker's copies cost less than looking at them."""

_MAX_PARTS = 1000
"""Parts of a concatenated dataset that are looked at."""


class Replacement(NamedTuple):
    """What takes the place of a container in workers."""

    holder: Any
    """The object whose attributes the container is; None if it is the dataset itself."""
    names: tuple[str, ...]
    container: Any
    shared: SharedSamples


class _Layout(NamedTuple):
    """What was laid out of a container, and of which keys and samples."""

    container: Any
    keys: list[Any]
    samples: list[Any]
    shared: SharedSamples


class SampleSharing:
    """What one loader has laid out. It is used again for as long as the samples are the same."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}

    def replacements(self, dataset: Any, notes: list[str], *, is_forked: bool) -> list[Replacement]:
        """Lay out the samples of a dataset, where workers would need more memory without.

        Args:
            dataset: of the loader.
            notes: gets what was laid out, and why something was not.
            is_forked: whether workers have a copy of what the script has, or of its pickle.
        """
        replacements = []
        layouts: dict[int, _Layout] = {}
        for holder, names, container in _containers(dataset, notes, is_forked=is_forked):
            where = "the dataset" if holder is None else f"{type(holder).__name__}.{names[0]}"
            try:
                layout = self._laid_out(container)
            except NotSharableError as error:
                _note(notes, f"the samples in {where} stay as they are: {error}")
                continue
            except Exception as error:  # of a class that is pickled, or of the system
                _note(notes, f"the samples in {where} stay as they are: {error!r}")
                continue
            layouts[id(container)] = layout
            shared = layout.shared
            _note(
                notes,
                f"the {shared.num_rows:,} samples in {where} are in shared memory, "
                f"in {shared.memory.size / (1 << 20):.0f} MiB",
            )
            replacements.append(Replacement(holder, names, container, shared))
        # (samples that can be changed may have been, by the next epoch)
        self._layouts = {
            key: layout for key, layout in layouts.items() if not layout.shared.can_change
        }
        return replacements

    def _laid_out(self, container: Any) -> _Layout:
        keys = list(container) if type(container) is dict else []
        samples = list(container.values() if type(container) is dict else container)
        layout = self._layouts.get(id(container))
        if (
            layout is not None
            and layout.container is container
            and _are_same(layout.keys, keys)
            and _are_same(layout.samples, samples)
        ):
            return layout
        kinds = require_sharable(samples, num_holders=2)
        writer = SampleWriter()
        index = write_keys(keys, writer) if type(container) is dict else None
        write = write_encoded if kinds.can_change else write_column
        column = write(samples, writer, is_builtin=kinds.is_builtin)
        memory = writer.finish()
        if memory.size >= (estimate := estimated_bytes(samples) + estimated_bytes(keys)):
            raise NotSharableError(
                f"they take {estimate / (1 << 20):.0f} MiB, and would take "
                f"{memory.size / (1 << 20):.0f} MiB there"
            )
        shared = SharedSamples(
            memory, column, len(samples), kinds.can_change, type(container), index
        )
        return _Layout(container, keys, [] if kinds.can_change else samples, shared)


def _note(notes: list[str], text: str) -> None:
    if text not in notes:  # it is the same at each epoch
        notes.append(text)


def _are_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before, after))


def _containers(
    dataset: Any, notes: list[str], *, is_forked: bool
) -> Iterator[tuple[Any, tuple[str, ...], Any]]:
    """Yield each container that is only indexed in workers, who holds it, and by which names."""
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
            _note(notes, f"the samples of {kind.__name__} stay as they are: {error}")
            continue
        if not is_forked and not _is_pickled_plainly(kind):
            continue
        for names, container in large.values():
            others = [name for name in names if use.is_used_otherwise(name) or hasattr(kind, name)]
            if others:
                _note(
                    notes,
                    f"the samples in {kind.__name__}.{others[0]} stay as they are: more is done "
                    "with it than to take samples and its length",
                )
            # of what no method uses, a forked worker makes no copies
            elif not is_forked or any(map(use.is_indexed, names)):
                yield holder, tuple(names), container


def _datasets_within(dataset: Any) -> Iterator[Any]:
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
    plain: Any = object
    return all(
        getattr(kind, name, None) is getattr(plain, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    )


@contextmanager
def gc_paused(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Have no garbage collected while a process is forked, nor in that process after it."""
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
    """In a forked worker: have collections pass over the objects of the script.

    A collection writes to every object that it looks at.
    """
    if replacements:
        gc.freeze()
        if _is_gc_paused:
            gc.enable()


def replace_in_worker(replacements: Sequence[Replacement], dataset: Any) -> Any:
    """Put shared samples in the place of a forked worker's containers; return its dataset."""
    _replaced.extend(replacements)
    for holder, names, _, shared in replacements:
        samples = shared.open()
        if holder is None:
            return samples
        vars(holder).update(dict.fromkeys(names, samples))
    return dataset


_replaced: list[Replacement] = []
"""What holds the containers: freeing one would write to each of its objects."""
