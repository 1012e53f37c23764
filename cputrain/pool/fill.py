"""A large tensor filled by many processes."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.random  # a worker seeds it only where it has been loaded
import torch

from cputrain.errors import FillFailed, UsageError
from cputrain.ipc.shared_tensors import SharedStorage
from cputrain.pool.pool import Pool
from cputrain.pool.progress import Bar
from cputrain.pool.seeds import seed_all, seed_from
from cputrain.pool.tasks import name_of, whole_number
from cputrain.pool.worker import room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTS = 1024
"""How many parts are made of a tensor, whatever the machine: the data must not depend on it."""

TOGETHER = 50_000_000
"""Nanoseconds of work that a process is sent at once, and tells of at once."""

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
    A part with rows that are missing is made again as a whole. The mask is kept up to date while
    rows are filled, so that one that was interrupted can be given again. `timeout` is for one
    part, `retries` for parts whose process died.
    """
    tensors = _tensors(out)
    takes_seed = _takes_seed(fn, len(tensors))
    rows = len(tensors[0])
    done = _mask(resume, rows)
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
    else:
        whole_number("seed", seed, at_least=0, do="Leave it out to have one drawn from torch's.")
    if processes != "auto":
        whole_number("processes", processes, at_least=1, do='"auto" is one for each core.')
    size = _rows_of_part(tensors, chunk)
    ranges = [range(begin, min(begin + size, rows)) for begin in range(0, rows, size)]
    parts = [
        Part(index, seed_from(seed, index.start))
        for index in ranges
        if not bool(done[index.start : index.stop].all())
    ]
    if not parts:
        return out
    filled = _Filled(tensors, done)
    call = partial(
        _fill_part,
        fn,
        takes_seed,
        [tensor if _stays_shared(tensor) else None for tensor in tensors],
        [(tensor.shape[1:], tensor.dtype) for tensor in tensors],
    )
    pool = Pool(
        None if processes == "auto" else min(int(processes), len(parts)),
        context=context,
        timeout=timeout,
        retries=retries,
    )
    with pool, Bar(name_of(fn, "fill"), rows, shown=progress) as bar:
        bar.advance(rows - sum(len(part.rows) for part in parts))
        outcomes = pool._fill(call, parts).bundled(TOGETHER)
        try:
            left = len(parts)
            while left:
                outcome = outcomes.next_outcome()
                told = parts[outcome.number : outcome.number + outcome.tasks]
                if not outcome.success:
                    raise filled.failure(told[0].rows, outcome.value) from outcome.value
                for part, made in zip(told, outcome.value, strict=True):
                    filled.take(part.rows, made)
                    bar.advance(len(part.rows))
                left -= len(told)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(filled.told())
            raise
    return out


class Part(NamedTuple):
    """Rows to be filled together."""

    rows: range
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
            f"{count:,} of {len(self._done):,} rows are there: a mask given as `resume` says "
            "which, and the same call with it goes on."
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
    index = part.rows
    views = [
        room((len(index), *shape), dtype) if tensor is None else tensor[index.start : index.stop]
        for tensor, (shape, dtype) in zip(shared, shapes, strict=True)
    ]
    seed_all(part.seed)
    given = [view[:] for view in views]  # whose shapes it may change
    with torch.no_grad():
        if takes_seed:
            fn(index, *given, seed=part.seed)
        else:
            fn(index, *given, part.seed)
    return [view if tensor is None else None for view, tensor in zip(views, shared, strict=True)]


def _takes_seed(fn: Callable[..., Any], tensors: int) -> bool:
    """Whether the seed is given by its name, as it must be after `*views`."""
    form = f"fn(index_range, {'view, ' if tensors == 1 else f'{tensors} views, '}seed)"
    if not callable(fn):
        raise UsageError("fn", "must be a function", found=repr(fn), do=f"It is called as {form}.")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_seed = any(
        (one.name == "seed" and one.kind in by_name) or one.kind is inspect.Parameter.VAR_KEYWORD
        for one in signature.parameters.values()
    )
    given = [None] * (1 + tensors)
    try:
        signature.bind(*given, seed=0) if takes_seed else signature.bind(*given, 0)
    except TypeError as error:
        raise UsageError(
            "fn",
            f"must take {form}",
            found=f"{name_of(fn, 'fill')}{signature}: {error}",
            do="Give it a parameter for each of these.",
        ) from None
    return takes_seed


def _stays_shared(tensor: torch.Tensor) -> bool:
    """Whether a worker that is sent it writes where it lies, and not to a copy."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and SharedStorage.can_hold(tensor)
    )


def _tensors(out: Any) -> list[torch.Tensor]:
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if any(isinstance(one, np.ndarray) and not one.flags.writeable for one in given):
        raise UsageError(
            "out",
            "must be writable",
            found="an array that can only be read",
            do='Open a file with np.memmap(..., mode="r+"), or copy the array.',
        )
    tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in given]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            raise UsageError(
                "out",
                "must be a tensor with rows, or several of them",
                found=f"a {type(tensor).__name__}"
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
        whole_number("chunk", chunk, at_least=1, do='Leave it out, or say "auto".')
        return int(chunk)
    rows = len(tensors[0])
    row = sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)
    return max(1, min(-(-rows // PARTS), PART_BYTES // max(1, row)))
