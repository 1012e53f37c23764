"""A large tensor filled by many processes."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cputrain.errors import FillFailed, UsageError
from cputrain.pool.pool import Pool
from cputrain.pool.progress import Bar
from cputrain.pool.seeds import seed_all, seed_from
from cputrain.pool.tasks import whole_number
from cputrain.pool.worker import room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTS = 1024
"""How many parts are made of a tensor, whatever the machine: the data must not depend on it."""

PART_BYTES = 32 << 20
"""Bytes that a part has at most, if a row has no more."""


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
    """Fill `out`, a tensor or several of the same length, in parallel; returns `out`.

    `fn(index_range, *views, seed)` is called for one part after another: it writes rows
    `index_range` into `views`, which are those rows of each tensor. Its `seed` follows from `seed`
    and the part alone, and torch, random and NumPy have been seeded with it: the same seed gives
    the same data, whatever the number of processes. `chunk` is how many rows a part has.

    `resume` is a boolean tensor with an element for each row: true where nothing is to be done.
    It is kept up to date while rows are filled, so that one that was interrupted can be given
    again. `timeout` is for one part, `retries` for parts whose process died.
    """
    tensors = _tensors(out)
    rows = len(tensors[0])
    done = _mask(resume, rows)
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
    else:
        whole_number("seed", seed, at_least=0)
    size = _rows_of_part(tensors, chunk)
    ranges = [range(begin, min(begin + size, rows)) for begin in range(0, rows, size)]
    parts = [
        Part(index, seed_from(seed, index.start))
        for index in ranges
        if not bool(done[index.start : index.stop].all())
    ]
    if not parts:
        return out
    if isinstance(processes, str):
        if processes != "auto":
            raise UsageError("processes", 'must be a number or "auto"', found=repr(processes))
        processes = 0
    filled = _Filled(tensors, done)
    call = partial(
        _fill_part,
        fn,
        _takes_seed(fn),
        [tensor if tensor.is_shared() else None for tensor in tensors],
        [(tensor.shape[1:], tensor.dtype) for tensor in tensors],
    )
    pool = Pool(
        min(processes, len(parts)) if processes else None,
        context=context,
        timeout=timeout,
        retries=retries,
    )
    with pool, Bar(_name(fn), rows, shown=progress) as bar:
        bar.advance(rows - sum(len(part.index) for part in parts))
        outcomes = pool.imap_unordered(call, parts)
        try:
            for _ in parts:
                outcome = outcomes.next_outcome()
                part = parts[outcome.index]
                if not outcome.success:
                    raise filled.failure(part.index, outcome.value) from outcome.value
                filled.take(part.index, outcome.value[0])
                bar.advance(len(part.index))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(filled.told())
            raise
    return out


class Part(NamedTuple):
    """Rows to be filled together."""

    index: range
    seed: int


class _Filled:
    """The tensors in this process, and how far they are."""

    def __init__(self, tensors: Sequence[torch.Tensor], done: torch.Tensor) -> None:
        self._tensors = tensors
        self._done = done

    def take(self, index: range, made: Sequence[torch.Tensor | None]) -> None:
        """A part has been made; what is None has been written in its place."""
        for tensor, rows in zip(self._tensors, made, strict=True):
            if rows is not None:
                tensor[index.start : index.stop].copy_(rows)
        self._done[index.start : index.stop] = True

    def told(self) -> str:
        """What is there, and how to go on."""
        count = int(self._done.sum())
        return (
            f"{count:,} of {len(self._done):,} rows are there: a mask given as `resume` says which, "
            "and the same call with it goes on."
        )

    def failure(self, index: range, error: BaseException) -> FillFailed:
        """A part could not be made."""
        failed = FillFailed(
            f"rows {index.start} to {index.stop - 1}",
            "were not filled",
            found=f"{type(error).__name__}: {error}".rstrip("."),
            do=f"{int(self._done.sum()):,} of {len(self._done):,} rows are there; to go on, call "
            "fill again with resume=error.done.",
        )
        failed.failed, failed.done = index, self._done
        return failed


def _fill_part(
    fn: Callable[..., Any],
    takes_seed: bool,
    shared: Sequence[torch.Tensor | None],
    shapes: Sequence[tuple[torch.Size, torch.dtype]],
    part: Part,
) -> list[torch.Tensor | None]:
    """In a worker: the views of one part, filled; None for those that lie in shared memory."""
    index = part.index
    views = [
        room((len(index), *shape), dtype) if tensor is None else tensor[index.start : index.stop]
        for tensor, (shape, dtype) in zip(shared, shapes, strict=True)
    ]
    seed_all(part.seed)
    with torch.no_grad():
        if takes_seed:
            fn(index, *views, seed=part.seed)
        else:
            fn(index, *views, part.seed)
    return [view if tensor is None else None for view, tensor in zip(views, shared, strict=True)]


def _takes_seed(fn: Callable[..., Any]) -> bool:
    """Whether the seed is given by its name, as it must be after `*views`."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        (one.name == "seed" and one.kind in by_name) or one.kind is inspect.Parameter.VAR_KEYWORD
        for one in parameters
    )


def _tensors(out: Any) -> list[torch.Tensor]:
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in given]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            raise UsageError(
                "out",
                "must be a tensor with rows, or several of them",
                found=f"a {type(tensor).__name__}"
                + (" without dimensions" if isinstance(tensor, torch.Tensor) else ""),
            )
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1:
        raise UsageError(
            "out",
            "must be tensors of the same length",
            found=f"lengths {', '.join(str(len(tensor)) for tensor in tensors) or 'of none'}",
        )
    return [tensor.detach() for tensor in tensors]


def _mask(resume: torch.Tensor | None, rows: int) -> torch.Tensor:
    if resume is None:
        return torch.zeros(rows, dtype=torch.bool)
    if (
        not isinstance(resume, torch.Tensor)
        or resume.dtype != torch.bool
        or resume.shape != (rows,)
    ):
        found = type(resume).__name__
        if isinstance(resume, torch.Tensor):
            found = f"one of {resume.dtype} and shape {tuple(resume.shape)}"
        raise UsageError(
            "resume",
            f"must be a tensor of {rows} booleans, one for each row",
            found=found,
            do=f"Begin with torch.zeros({rows}, dtype=torch.bool).",
        )
    return resume


def _rows_of_part(tensors: Sequence[torch.Tensor], chunk: int | str) -> int:
    if chunk != "auto":
        if not isinstance(chunk, str):
            whole_number("chunk", chunk, at_least=1)
            return int(chunk)
        raise UsageError("chunk", 'must be a number of rows or "auto"', found=repr(chunk))
    rows = len(tensors[0])
    row = sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)
    return max(1, min(-(-rows // PARTS), PART_BYTES // max(1, row)))


def _name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", "fill")
