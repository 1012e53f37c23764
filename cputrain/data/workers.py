"""Batches made by worker processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from cputrain.data.transport import Transport

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from cputrain.data.statistics import Statistics


class WorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator, with our ways between the processes."""

    def __init__(self, loader: DataLoader[Any], statistics: Statistics) -> None:
        begin = time.perf_counter()
        self._shutdown = True  # nothing to shut down, should this fail
        self._statistics = statistics
        context = loader.multiprocessing_context or torch.multiprocessing
        self._transport = Transport(context, loader.collate_fn, statistics)
        super().__init__(_Through(loader, self._transport))
        self._transport.started()
        statistics.starting_s += time.perf_counter() - begin

    def _next_data(self) -> Any:
        begin = time.perf_counter()
        try:
            data = super()._next_data()
        finally:
            self._statistics.waited_s += time.perf_counter() - begin
        self._statistics.batches += 1
        return data

    def _try_get_data(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        try:
            return super()._try_get_data(*args, **kwargs)
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise RuntimeError(f"{error}: {self._deaths()}") from error.__cause__

    def _deaths(self) -> str:
        """How each worker that is gone ended."""
        return ", ".join(
            f"worker {place} (pid {worker.pid}) {_ending(worker.exitcode)}"
            for place, worker in enumerate(self._workers)
            if not worker.is_alive()
        )


def _ending(code: int | None) -> str:
    import signal

    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class _Through:
    """The loader, with our transport for its multiprocessing context."""

    def __init__(self, loader: DataLoader[Any], transport: Transport) -> None:
        self._loader = loader
        self.multiprocessing_context = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
