"""Batches that are loaded in this process, with the errors that torch's workers would send."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from cputrain.runtime.patching import PACKAGE, without_ours

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerIdentity(NamedTuple):
    """The worker process that would load a batch."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    is_grad_enabled: bool
    """Whether gradients were enabled when the process would have been started."""


def fetch_as_worker(worker: WorkerIdentity, fetcher: Any, rows: Any) -> Any:
    """Return the batch or the ExceptionWrapper that torch's worker loop would send.

    While the batch is loaded, `get_worker_info` returns the worker's; torch's collation calls it.

    Args:
        worker: The worker that the batch belongs to.
        fetcher: torch's fetcher, which loads the batch.
        rows: The rows of the batch.
    """
    previous_info = torch_worker._worker_info
    worker_info: Any = torch_worker.WorkerInfo
    torch_worker._worker_info = worker_info(
        id=worker.id, num_workers=worker.num_workers, seed=worker.seed, dataset=worker.dataset
    )
    try:
        with torch.set_grad_enabled(worker.is_grad_enabled):
            return _loop_step()(fetcher, rows)
    except Exception as error:
        trace = without_ours(error)
        where = f"in DataLoader worker process {worker.id}"
        return ExceptionWrapper((type(error), error, trace), where=where)
    finally:
        torch_worker._worker_info = previous_info


@cache
def _loop_step() -> Callable[[Any, Any], Any]:
    """Return the statement of torch's worker loop that loads a batch, as a function.

    It is compiled from torch's source, so that tracebacks show the same file, line and function.
    """
    path = inspect.getsourcefile(torch_worker)
    assert path is not None
    with open(path, encoding="utf-8") as file:
        module = ast.parse(file.read())
    for function in module.body:
        if isinstance(function, ast.FunctionDef) and function.name == "_worker_loop":
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assign) and _loads_batch(statement):
                    return _compiled(statement, torch_worker._worker_loop.__code__.co_filename)
    return lambda fetcher, index: fetcher.fetch(index)  # a torch with another worker loop


def _loads_batch(statement: ast.Assign) -> bool:
    return ast.unparse(statement) == "data = fetcher.fetch(index)"


def _compiled(statement: ast.Assign, file: str) -> Callable[[Any, Any], Any]:
    """Return a function that runs the statement and returns `data`."""
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
