"""Separate process of a backend, and its answers: lines of JSON with a prefix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from cputrain.measure.child import clean_environment, kill_process_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ANSWER_PREFIX = "cputrain: "
"""Prefix of an answer; lines without it are output of libraries."""


class ProcessEndedError(Exception):
    """Raised when a backend's process has ended; the message describes how."""

    def __init__(self, how: str, code: int) -> None:
        super().__init__(how)
        self.code = code


class BackendProcess:
    """The process of one backend; the caller must call `end`."""

    def __init__(self, *words: str, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (until the process ends)
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._child = subprocess.Popen(
            # -P: modules in the working folder must not shadow installed ones.
            [sys.executable, "-P", "-m", "cputrain.backends", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**clean_environment(), **environment},
            # A process group, so that compilers started by the process can be killed with it.
            process_group=0 if os.name == "posix" else None,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(ANSWER_PREFIX):
                self._answers.put(json.loads(text.removeprefix(ANSWER_PREFIX)))
        self._answers.put(None)

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; if the process has ended, the next `receive` raises."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer; None after a timeout.

        Raises:
            ProcessEndedError: The process has ended and all its answers were received.
        """
        try:
            answer = self._answers.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None
        if answer is not None:
            return answer
        self._answers.put(None)  # further calls raise, too
        code = self._child.wait()
        self._stderr.seek(0)
        stderr_lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        raise ProcessEndedError(
            f"{describe_exit(code)}{f': {stderr_lines[-1][:200]}' if stderr_lines else ''}", code
        )

    def end(self) -> None:
        """Kill the process and its children."""
        kill_process_group(self._child)
        self._reader.join(1.0)
        for pipe in (self._child.stdin, self._child.stdout, self._stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # unsent requests may be buffered
                    pipe.close()


def describe_exit(code: int) -> str:
    """Return a phrase that describes an exit code: "ended with code 1"."""
    if code >= 0:
        return f"ended with code {code}"
    import signal

    signal_names = (
        {signum.value: signum.name for signum in signal.Signals} if os.name == "posix" else {}
    )
    return f"was killed by {signal_names.get(-code, f'signal {-code}')}"
