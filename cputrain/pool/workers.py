"""A pool's worker as the pool sees it: its process, its pipes and what it is doing."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from cputrain.errors import ResourceError
from cputrain.pool.packets import TOKEN
from cputrain.pool.worker import Setup, WorkerEnds, serve
from cputrain.shared import End, Inbox, Memory, Outbox, Reader, Sender, pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.pool.slots import Slot


class Worker:
    """One process, from its start to its end."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.process: Any = None
        self.ready = False
        self.leaving = False
        """It has said that it ends."""
        self.killed_for = 0
        """The ticket of the task for which it was killed."""
        self.kept: set[tuple[int, int]] = set()
        """Blocks of arguments that something in it still holds."""
        self._ended: int | None = None
        self._ends: WorkerEnds | None = None
        memory = Memory.create()
        self.reader = Reader(memory, most=float("inf"))
        read, write = pipe()
        self.inbox, results = Inbox(read), Sender(write)
        read, write = pipe()
        self.outbox, returned = Outbox(write), End(read)
        self._own = (results, returned, memory)

    def start(
        self,
        process: Callable[..., Any],
        tasks: End,
        life: End,
        arguments: Memory,
        setup: Setup,
        close_others: Callable[[], None] | None,
    ) -> None:
        """Start its process."""
        ends = WorkerEnds(tasks, life, arguments, *self._own, self.slot)
        try:
            started = process(target=serve, args=(ends, setup, close_others))
            started.name = started.name.replace("Process", "PoolWorker")
            started.start()
        except OSError as error:
            self.close()
            raise ResourceError.of(error, "a pool's worker", "was not started") from error
        except BaseException:
            self.close()
            raise
        finally:
            ends.close()
        self.process = started
        try:
            self._ended = os.pidfd_open(started.pid)
        except (AttributeError, OSError):  # an old kernel, or it has ended
            self._ended = None

    @property
    def sentinel(self) -> int:
        """Can be read once the process has ended."""
        return self.process.sentinel if self._ended is None else self._ended

    def give_back(self) -> None:
        """Tell it which blocks are held no more."""
        tokens = self.reader.returned()
        if tokens:
            self.outbox.send_raw(b"".join(TOKEN.pack(*token) for token in tokens))

    def has_ended(self) -> bool:
        """Whether its process has."""
        return bool(connection.wait([self.sentinel], 0))

    def kill(self) -> None:
        """End it at once."""
        try:
            os.kill(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended by itself
            return

    def join(self) -> str:
        """Wait for its end, and tell how it ended."""
        self.process.join(1.0)
        end = time.monotonic() + 1.0
        while self.process.exitcode is None and time.monotonic() < end:
            time.sleep(0.001)
        code = self.process.exitcode
        who = f"process {self.process.pid}"
        if code is None or code == 255:  # a server that starts processes may not know
            return f"{who} is gone"
        if code < 0:
            try:
                return f"{who} was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"{who} was killed by signal {-code}"
        return f"{who} ended with exit code {code}"

    def close(self) -> None:
        """Let go of all but what the script holds of its results."""
        self.inbox.close()
        self.outbox.close()
        ended, self._ended = self._ended, None
        if ended is not None:
            os.close(ended)
        self.reader.end()
