"""The step of torch's iterators, without the time that it takes to tell a profiler of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from cputrain.runtime.patching import PACKAGE, UNCOUNTED, uncounted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def is_watched() -> bool:
    """Return whether a mode sees each operator of torch: then it sees those of torch's loader."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def is_profiled() -> bool:
    """Return whether somebody is told when a batch begins and ends."""
    return profiler._is_profiler_enabled or is_watched()


def profile_name(kind: type) -> str:
    """Return what torch calls a batch of this iterator when it tells a profiler."""
    return f"enumerate(DataLoader)#{kind.__name__}.__next__"


def next_batch(iterator: Any, *, is_counted: bool = False) -> Any:
    """Return the next batch of one of torch's iterators, telling a profiler only if there is one.

    Args:
        iterator: The iterator that is asked.
        is_counted: Whether torch counts its batches, and warns of too many.
    """
    if is_counted or is_profiled():
        return _BaseDataLoaderIter.__next__(iterator)
    try:
        batch = iterator._next_data()
    except BaseException as error:
        raise_as_torch(iterator, error)
    iterator._num_yielded += 1
    return batch


uncounted(next_batch)


def raise_as_torch(iterator: Any, error: BaseException) -> None:
    """Raise an error of `iterator._next_data()` with the frames that it has in torch's iterator."""

    def raise_error() -> None:
        raise error

    iterator._next_data = raise_error  # before the method of its class
    try:
        _BaseDataLoaderIter.__next__(iterator)
    finally:
        del iterator._next_data


def refusal_to_pickle(kind: type) -> Callable[[Any], Any]:
    """Return a `__getstate__` that raises what torch's iterator of this kind raises."""

    def __getstate__(_iterator: Any) -> Any:  # noqa: N807
        try:
            return _BaseDataLoaderIter.__getstate__(type(kind.__name__, (), {})())
        except NotImplementedError as error:
            hide_frames(error)
            raise

    return __getstate__


def hide_frames(error: BaseException) -> None:
    """Take the frames of this package out of an error's traceback, unless the fault is its own."""
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if not frames or (_is_ours(frames[-1]) and not _is_patch(frames[-1])):
        return
    kept: TracebackType | None = None
    for frame in reversed(frames):
        if not _is_ours(frame):
            frame.tb_next = kept
            kept = frame
    error.__traceback__ = kept


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(PACKAGE)


def _is_patch(frame: TracebackType) -> bool:
    """Return whether this is the frame of a patch, a function of ours in place of one of torch's.

    Where a traceback ends with one, torch's C function has raised the error, and that has no frame.
    """
    return frame.tb_frame.f_code.co_filename.endswith(UNCOUNTED)
