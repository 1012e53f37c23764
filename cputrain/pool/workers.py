"""The pool's handle of a worker: its process, pipes, result arena and slot."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from cputrain.errors import ResourceError
from cputrain.ipc import ArenaMemory, End, Inbox, Outbox, Reader, Sender, pipe
from cputrain.pool.packets import TOKEN
from cputrain.pool.worker import PoolWorkerEnds, WorkerSetup, serve
from cputrain.pool.zygote import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.pool.slots import Slot
    from cputrain.pool.zygote import SharedResources, Zygote


class PoolWorker:
    """One worker process, from its start to its exit."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.process: Any = None
        self.is_exiting = False
        """Whether it has announced that it exits."""
        self.killed_ticket = 0
        """The ticket of the task whose timeout it was killed for; 0 if it was not killed."""
        self.held_blocks: set[tuple[int, int]] = set()
        """Tokens of argument blocks that objects in the worker still refer to."""
        self._pidfd: int | None = None
        memory = ArenaMemory.create()
        self.reader = Reader(memory, max_ratio=float("inf"))
        read, write = pipe()
        self.inbox, results = Inbox(read), Sender(write)
        read, write = pipe()
        self.outbox, returned = Outbox(write), End(read)
        self._worker_ends = (results, returned, memory)

    def start(
        self, process_class: Callable[..., Any], shared: SharedResources, setup: WorkerSetup
    ) -> None:
        """Start the worker as a child of this process, by the pool's multiprocessing context."""
        ends = PoolWorkerEnds(
            shared.tasks, shared.life, shared.arguments, *self._worker_ends, self.slot
        )
        try:
            process = process_class(target=serve, args=(ends, setup, None))
            process.name = process.name.replace("Process", "PoolWorker")
            process.start()
        except OSError as error:
            raise ResourceError.of(error, "a pool's worker", "was not started") from error
        finally:
            ends.close()
        self.process = process
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # an old kernel, or it has exited
            self._pidfd = None

    def start_from_zygote(self, zygote: Zygote, seed: int) -> None:
        """Have the zygote fork the worker."""
        results, returned, memory = self._worker_ends
        descriptors = [results.fileno(), returned.fileno(), memory.fileno()]
        try:
            self.process = zygote.spawn(self.slot, seed, memory, descriptors)
        except OSError as error:
            raise ResourceError.of(error, "a pool's worker", "was not started") from error
        finally:
            results.close()
            returned.close()

    @property
    def is_forked_by_zygote(self) -> bool:
        """Whether the zygote forks it."""
        return isinstance(self.process, ForkedProcess)

    def is_pending_in(self, zygote: Zygote) -> bool:
        """Return whether `zygote` is to report the worker's start and exit."""
        return isinstance(self.process, ForkedProcess) and self.process.zygote is zygote

    @property
    def refusal_errno(self) -> int:
        """The errno with which the system refused to start it; 0 otherwise."""
        return self.process.refused_errno if isinstance(self.process, ForkedProcess) else 0

    @property
    def is_started(self) -> bool:
        """Whether its process ID is known."""
        return not isinstance(self.process, ForkedProcess) or self.process.sentinel >= 0

    @property
    def sentinel(self) -> int:
        """A file descriptor that is readable once the process has exited."""
        return self.process.sentinel if self._pidfd is None else self._pidfd

    def return_blocks(self) -> None:
        """Tell the worker which blocks of its results are no longer in use here."""
        tokens = self.reader.take_released()
        if tokens:
            self.outbox.send_raw(b"".join(TOKEN.pack(*token) for token in tokens))

    def has_ended(self) -> bool:
        """Return whether its process has exited or could not be started."""
        if not self.is_started:
            return bool(self.refusal_errno)
        return bool(connection.wait([self.sentinel], 0))

    def join(self) -> str:
        """Wait up to 2 s for its exit; return its exit status as text."""
        self.process.join(1.0)
        deadline_s = time.monotonic() + 1.0
        while self.process.exitcode is None and time.monotonic() < deadline_s:
            time.sleep(0.001)
        code = self.process.exitcode
        subject = f"process {self.process.pid}"
        if code is None or code == 255:  # a fork server may not know the exit code
            return f"{subject} is gone"
        if code < 0:
            try:
                return f"{subject} was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"{subject} was killed by signal {-code}"
        return f"{subject} ended with exit code {code}"

    def close(self) -> None:
        """Close its descriptors; blocks of results that are still referred to stay mapped."""
        self.inbox.close()
        self.outbox.close()
        if isinstance(self.process, ForkedProcess):
            self.process.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
        self.reader.close()
