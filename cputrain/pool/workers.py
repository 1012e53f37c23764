"""A pool's worker as the pool sees it: its process, its pipes and what it is doing."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from cputrain.errors import ResourceError
from cputrain.ipc import End, Inbox, Memory, Outbox, Reader, Sender, pipe
from cputrain.pool.packets import TOKEN
from cputrain.pool.worker import Setup, WorkerEnds, serve
from cputrain.pool.zygote import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.pool.slots import Slot
    from cputrain.pool.zygote import Shared, Zygote


class Worker:
    """One process, from its start to its end."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.process: Any = None
        self.leaving = False
        """It has said that it ends."""
        self.killed_for = 0
        """The ticket of the task for which it was killed."""
        self.kept: set[tuple[int, int]] = set()
        """Blocks of arguments that something in it still holds."""
        self._ended: int | None = None
        memory = Memory.create()
        self.reader = Reader(memory, most=float("inf"))
        read, write = pipe()
        self.inbox, results = Inbox(read), Sender(write)
        read, write = pipe()
        self.outbox, returned = Outbox(write), End(read)
        self._own = (results, returned, memory)

    def start(self, process: Callable[..., Any], shared: Shared, setup: Setup) -> None:
        """Start its process from this one."""
        ends = WorkerEnds(shared.tasks, shared.life, shared.arguments, *self._own, self.slot)
        try:
            started = process(target=serve, args=(ends, setup, None))
            started.name = started.name.replace("Process", "PoolWorker")
            started.start()
        except OSError as error:
            raise ResourceError.of(error, "a pool's worker", "was not started") from error
        finally:
            ends.close()
        self.process = started
        try:
            self._ended = os.pidfd_open(started.pid)
        except (AttributeError, OSError):  # an old kernel, or it has ended
            self._ended = None

    def start_from(self, template: Zygote, seed: int) -> None:
        """Have its process forked by the template."""
        results, returned, memory = self._own
        descriptors = [results.fileno(), returned.fileno(), memory.fileno()]
        try:
            self.process = template.bear(self.slot, seed, memory, descriptors)
        except OSError as error:
            raise ResourceError.of(error, "a pool's worker", "was not started") from error
        finally:
            results.close()
            returned.close()

    @property
    def is_born(self) -> bool:
        """Whether the template forks it."""
        return isinstance(self.process, ForkedProcess)

    def was_asked_of(self, template: Zygote) -> bool:
        """Whether this one is to tell of it."""
        return isinstance(self.process, ForkedProcess) and self.process.template is template

    @property
    def refusal(self) -> int:
        """Why the system would not start it, as it numbers errors; 0 otherwise."""
        return self.process.refused if isinstance(self.process, ForkedProcess) else 0

    @property
    def is_started(self) -> bool:
        """Whether its process is known."""
        return not isinstance(self.process, ForkedProcess) or self.process.sentinel >= 0

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
        """Whether its process has, or has never begun."""
        if not self.is_started:
            return bool(self.refusal)
        return bool(connection.wait([self.sentinel], 0))

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
        if isinstance(self.process, ForkedProcess):
            self.process.close()
        ended, self._ended = self._ended, None
        if ended is not None:
            os.close(ended)
        self.reader.end()
