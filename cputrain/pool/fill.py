"""Fill large tensors in parallel with a pool of processes."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.random  # a worker seeds it only where it has been loaded
import torch

from cputrain.counting import counted
from cputrain.errors import ArgumentTypeError, FillFailed, UsageError, argument_error
from cputrain.ipc.shared_tensors import SharedStorage
from cputrain.pool.pool import Pool
from cputrain.pool.progress import Bar
from cputrain.pool.seeds import seed_all, seed_from
from cputrain.pool.tasks import name_of, whole_number
from cputrain.pool.worker import room
from cputrain.runtime.common_data import share_with_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_CHUNKS = 1024
"""Number of chunks of rows, the same on every machine, so that the data does not depend on it."""

BUNDLE_NS = 50_000_000
"""Nanoseconds of work that a worker is sent, and reports, in one bundle."""

MAX_CHUNK_BYTES = 32 << 20
"""Maximum bytes of a chunk, unless a single row is larger."""


def fill(
    out: Any,
    fn: Callable[..., Any],
    *,
    chunk: int | str = "auto",
    processes: int | str = "auto",
    seed: int | None = None,
    progress: bool = True,
    resume: torch.Tensor | None = None,
    timeout: float | None = None,
    retries: int = 0,
    context: Any = None,
) -> Any:
    """Fill `out`, a tensor or several of the same length, in parallel; return `out`.

    `fn(index_range, *views, seed)` is called for each chunk of rows: it writes rows `index_range`
    into `views`, which are those rows of each tensor. Its `seed` is derived from `seed` and the
    chunk alone, and torch, random and NumPy are seeded with it: the same seed gives the same data,
    whatever the number of processes.

    Args:
        out: A tensor or array, or several with the same number of rows.
        fn: Function that fills a chunk, as above.
        chunk: Number of rows in a chunk; "auto" makes about a thousand chunks.
        processes: Number of workers; "auto" is one for each core.
        seed: Seed of the data; drawn from torch's generator by default.
        progress: Whether to show a progress bar.
        resume: Boolean mask with an element per row: true for rows that are filled already. A
            chunk with any missing row is filled again completely. The mask is updated while rows
            are filled, so that an interrupted fill can be resumed with it.
        timeout: Seconds for one chunk.
        retries: How many times a chunk is run again whose process exited.
        context: A multiprocessing context or the name of a start method.

    Raises:
        FillFailed: Some rows could not be filled; it has the rows and the mask.

    Examples:
        >>> import torch
        >>> from cputrain import fill
        >>> def squares(rows, out, seed):
        ...     out[:] = torch.tensor(rows) ** 2
        >>> fill(torch.empty(5, dtype=torch.int64), squares, processes=2, progress=False)
        tensor([ 0,  1,  4,  9, 16])
    """
    tensors = _check_tensors(out)
    takes_seed = _takes_seed(fn, len(tensors))
    num_rows = len(tensors[0])
    done = _check_mask(resume, num_rows)
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
    else:
        whole_number("seed", seed, at_least=0, do="Leave it out to have one drawn from torch's.")
    if processes != "auto":
        whole_number("processes", processes, at_least=1, do='"auto" is one for each core.')
    chunk_rows = _rows_per_chunk(tensors, chunk)
    ranges = [
        range(begin, min(begin + chunk_rows, num_rows)) for begin in range(0, num_rows, chunk_rows)
    ]
    row_chunks = [
        RowChunk(row_range, seed_from(seed, row_range.start))
        for row_range in ranges
        if not bool(done[row_range.start : row_range.stop].all())
    ]
    if not row_chunks:
        return out
    state = _FillState(tensors, done)
    call = partial(
        _fill_chunk,
        fn,
        takes_seed,
        [tensor if _can_write_in_place(tensor) else None for tensor in tensors],
        [(tensor.shape[1:], tensor.dtype) for tensor in tensors],
    )
    pool = Pool(
        None if processes == "auto" else min(int(processes), len(row_chunks)),
        context=context,
        timeout=timeout,
        retries=retries,
    )
    with pool, Bar(name_of(fn, "fill"), num_rows, shown=progress) as bar:
        bar.advance(num_rows - sum(len(chunk_of_rows.rows) for chunk_of_rows in row_chunks))
        outcomes = pool._fill(call, row_chunks).bundled(BUNDLE_NS)
        try:
            num_remaining = len(row_chunks)
            while num_remaining:
                outcome = outcomes.next_outcome()
                finished = row_chunks[outcome.number : outcome.number + outcome.tasks]
                if not outcome.success:
                    raise state.failure(finished[0].rows, outcome.value) from outcome.value
                for chunk_of_rows, results in zip(finished, outcome.value, strict=True):
                    state.mark_filled(chunk_of_rows.rows, results)
                    bar.advance(len(chunk_of_rows.rows))
                num_remaining -= len(finished)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(state.progress_note())
            raise
    share_with_jobs(tensors)
    return out


class RowChunk(NamedTuple):
    """Rows to be filled by one call, and the seed for them."""

    rows: range
    seed: int


class _FillState:
    """The tensors in this process, and the mask of filled rows."""

    def __init__(self, tensors: Sequence[torch.Tensor], done: torch.Tensor) -> None:
        self._tensors = tensors
        self._done = done

    def mark_filled(self, row_range: range, chunk_rows: Sequence[torch.Tensor | None]) -> None:
        """Copy a chunk's rows into the tensors (None: written in place) and mark them as filled."""
        for tensor, rows in zip(self._tensors, chunk_rows, strict=True):
            if rows is not None:
                tensor[row_range.start : row_range.stop].copy_(rows)
        self._done[row_range.start : row_range.stop] = True

    def progress_note(self) -> str:
        """Return a note on how many rows are filled and how to resume."""
        count = int(self._done.sum())
        return (
            f"{count:,} of {len(self._done):,} rows are there: a mask given as `resume` says "
            "which, and the same call with it goes on."
        )

    def failure(self, row_range: range, error: BaseException) -> FillFailed:
        """Return the error for a chunk that could not be filled."""
        failed = FillFailed(
            f"rows {row_range.start} to {row_range.stop - 1}",
            "were not filled",
            found=f"{type(error).__name__}: {error}".rstrip("."),
            do=f"{int(self._done.sum()):,} of {len(self._done):,} rows are there; to go on, call "
            "fill again with resume=error.done.",
        )
        failed.failed, failed.done = row_range, self._done
        return failed


def _fill_chunk(
    fn: Callable[..., Any],
    takes_seed: bool,
    shared_tensors: Sequence[torch.Tensor | None],
    shapes: Sequence[tuple[torch.Size, torch.dtype]],
    row_chunk: RowChunk,
) -> list[torch.Tensor | None]:
    """Fill a chunk in a worker; return its rows of each tensor, None if written in place."""
    row_range = row_chunk.rows
    views = [
        room((len(row_range), *shape), dtype)
        if tensor is None
        else tensor[row_range.start : row_range.stop]
        for tensor, (shape, dtype) in zip(shared_tensors, shapes, strict=True)
    ]
    seed_all(row_chunk.seed)
    view_args = [view[:] for view in views]  # aliases, whose shapes `fn` may change
    with torch.no_grad():
        if takes_seed:
            fn(row_range, *view_args, seed=row_chunk.seed)
        else:
            fn(row_range, *view_args, row_chunk.seed)
    return [
        view if tensor is None else None for view, tensor in zip(views, shared_tensors, strict=True)
    ]


def _takes_seed(fn: Callable[..., Any], num_tensors: int) -> bool:
    """Check `fn`'s signature; return whether it takes the seed by keyword, as after `*views`."""
    call_form = f"fn(index_range, {'view, ' if num_tensors == 1 else f'{num_tensors} views, '}seed)"
    if not callable(fn):
        raise ArgumentTypeError(
            "fn", "must be a function", found=repr(fn), do=f"It is called as {call_form}."
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_seed = any(
        (parameter.name == "seed" and parameter.kind in by_name)
        or parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in signature.parameters.values()
    )
    placeholders = [None] * (1 + num_tensors)
    try:
        signature.bind(*placeholders, seed=0) if takes_seed else signature.bind(*placeholders, 0)
    except TypeError as error:
        raise UsageError(
            "fn",
            f"must take {call_form}",
            found=f"{name_of(fn, 'fill')}{signature}: {error}",
            do="Give it a parameter for each of these.",
        ) from None
    return takes_seed


def _can_write_in_place(tensor: torch.Tensor) -> bool:
    """Return whether a worker writes to the tensor's shared memory, not to a copy."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and SharedStorage.can_hold(tensor)
    )


def _check_tensors(out: Any) -> list[torch.Tensor]:
    """Return `out` as a list of detached tensors; raise UsageError if they cannot be filled."""
    outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    if any(isinstance(output, np.ndarray) and not output.flags.writeable for output in outputs):
        raise UsageError(
            "out",
            "must be writable",
            found="an array that can only be read",
            do='Open a file with np.memmap(..., mode="r+"), or copy the array.',
        )
    tensors = [
        torch.from_numpy(output) if isinstance(output, np.ndarray) else output for output in outputs
    ]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            raise argument_error(tensor, torch.Tensor)(
                "out",
                "must be a tensor with rows, or several of them",
                found=type(tensor).__name__
                + (" without dimensions" if isinstance(tensor, torch.Tensor) else ""),
                do="Make one first, such as torch.empty(rows, 512, dtype=torch.uint8).",
            )
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1:
        raise UsageError(
            "out",
            "must be tensors of the same length",
            found=f"lengths {', '.join(str(len(tensor)) for tensor in tensors) or 'of none'}",
            do="Each has a row for each row of the others.",
        )
    return [tensor.detach() for tensor in tensors]


def _check_mask(resume: torch.Tensor | None, num_rows: int) -> torch.Tensor:
    """Return the mask of filled rows, `resume` if it is given and valid."""
    if resume is None:
        return torch.zeros(num_rows, dtype=torch.bool)
    if (
        not isinstance(resume, torch.Tensor)
        or resume.dtype != torch.bool
        or resume.shape != (num_rows,)
    ):
        actual = type(resume).__name__
        if isinstance(resume, torch.Tensor):
            actual = f"one of {resume.dtype} and shape {tuple(resume.shape)}"
        raise argument_error(resume, torch.Tensor)(
            "resume",
            f"must be a tensor of {counted(num_rows, 'boolean')}, one for each row",
            found=actual,
            do=f"Begin with torch.zeros({num_rows}, dtype=torch.bool).",
        )
    return resume


def _rows_per_chunk(tensors: Sequence[torch.Tensor], chunk: int | str) -> int:
    """Return the number of rows in a chunk."""
    if chunk != "auto":
        whole_number("chunk", chunk, at_least=1, do='Leave it out, or say "auto".')
        return int(chunk)
    num_rows = len(tensors[0])
    row_bytes = sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)
    return max(1, min(-(-num_rows // NUM_CHUNKS), MAX_CHUNK_BYTES // max(1, row_bytes)))
