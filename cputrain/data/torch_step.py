"""`__next__` of torch's loader iterators without the profiler's overhead, and clean tracebacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from cputrain.runtime.patching import PACKAGE, UNCOUNTED, uncounted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def has_torch_mode() -> bool:
    """Return whether a torch function or dispatch mode is active; it sees a loader's operators."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def is_observed() -> bool:
    """Return whether a profiler or a torch mode would see the beginning and end of a batch."""
    return profiler._is_profiler_enabled or has_torch_mode()


def profile_name(kind: type) -> str:
    """Return the name under which torch's profiler records the batches of an iterator class."""
    return f"enumerate(DataLoader)#{kind.__name__}.__next__"


def next_batch(iterator: Any, *, is_counted: bool = False) -> Any:
    """Return the next batch of an iterator of torch, without the cost of inactive profiling.

    Args:
        iterator: An instance of a subclass of `_BaseDataLoaderIter`.
        is_counted: Whether torch must count the batches to warn of too many.
    """
    if is_counted or is_observed():
        return _BaseDataLoaderIter.__next__(iterator)
    try:
        batch = iterator._next_data()
    except BaseException as error:
        raise_as_torch(iterator, error)
    iterator._num_yielded += 1
    return batch


uncounted(next_batch)


def raise_as_torch(iterator: Any, error: BaseException) -> None:
    """Raise an error of `iterator._next_data()` through torch's `__next__`, to have its frames."""

    def raise_error() -> None:
        raise error

    iterator._next_data = raise_error  # hides the method of its class
    try:
        _BaseDataLoaderIter.__next__(iterator)
    finally:
        del iterator._next_data


def refusal_to_pickle(kind: type) -> Callable[[Any], Any]:
    """Return a `__getstate__` that raises the error of torch's iterator class `kind`."""

    def __getstate__(_iterator: Any) -> Any:  # noqa: N807
        try:
            return _BaseDataLoaderIter.__getstate__(type(kind.__name__, (), {})())
        except NotImplementedError as error:
            hide_frames(error)
            raise

    return __getstate__


def hide_frames(error: BaseException) -> None:
    """Remove this package's frames from an error's traceback, unless this package raised it."""
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if not frames or (_is_of_this_package(frames[-1]) and not _is_patch(frames[-1])):
        return
    remaining: TracebackType | None = None
    for frame in reversed(frames):
        if not _is_of_this_package(frame):
            frame.tb_next = remaining
            remaining = frame
    error.__traceback__ = remaining


def _is_of_this_package(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(PACKAGE)


def _is_patch(frame: TracebackType) -> bool:
    """Return whether a frame is of a patch: a function that replaces one of torch's.

    If a traceback ends with such a frame, the C function that it called raised the error.
    """
    return frame.tb_frame.f_code.co_filename.endswith(UNCOUNTED)
