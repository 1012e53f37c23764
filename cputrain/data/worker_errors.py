"""Batches that fail in this process, and are told of as torch's worker processes tell of theirs."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torchs

from cputrain.runtime.patching import PACKAGE, without_ours

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker(NamedTuple):
    """The worker process that would make a batch."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    has_gradients: bool
    """Whether gradients were enabled where the process would have been started."""


def fetch_as_worker(worker: Worker, fetcher: Any, rows: Any) -> Any:
    """Return the batch that torch's worker loop would send, or the error that it would send.

    While it is made, this process is a worker to whoever asks: torch's collation does.
    """
    before = torchs._worker_info
    info: Any = torchs.WorkerInfo
    torchs._worker_info = info(
        id=worker.id, num_workers=worker.num_workers, seed=worker.seed, dataset=worker.dataset
    )
    try:
        with torch.set_grad_enabled(worker.has_gradients):
            return _loop_step()(fetcher, rows)
    except Exception as error:
        trace = without_ours(error)
        where = f"in DataLoader worker process {worker.id}"
        return ExceptionWrapper((type(error), error, trace), where=where)
    finally:
        torchs._worker_info = before


@cache
def _loop_step() -> Callable[[Any, Any], Any]:
    """Return the statement of torch's worker loop that makes a batch, as a function.

    It is compiled from torch's own source, so that tracebacks show the line they show there.
    """
    path = inspect.getsourcefile(torchs)
    assert path is not None
    with open(path, encoding="utf-8") as file:
        module = ast.parse(file.read())
    for function in module.body:
        if isinstance(function, ast.FunctionDef) and function.name == "_worker_loop":
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assign) and _makes_a_batch(statement):
                    return _compiled(statement, torchs._worker_loop.__code__.co_filename)
    return lambda fetcher, index: fetcher.fetch(index)  # a torch whose loop is another


def _makes_a_batch(statement: ast.Assign) -> bool:
    return ast.unparse(statement) == "data = fetcher.fetch(index)"


def _compiled(statement: ast.Assign, file: str) -> Callable[[Any, Any], Any]:
    shell = ast.parse("def _worker_loop(fetcher, index):\n    return data")
    function = shell.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body.insert(0, statement)
    names: dict[str, Any] = {}
    exec(compile(shell, file, "exec"), names)
    loop: Callable[[Any, Any], Any] = names["_worker_loop"]
    return loop


def without_frames(text: str) -> str:
    """Return the text of a worker's traceback without the frames of this package."""
    return _FRAME.sub("", text)


_FRAME = re.compile(rf'  File "{re.escape(PACKAGE)}data/[^"]*", line \d+, in .*\n(?:    .*\n)*')
