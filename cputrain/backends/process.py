"""A backend's process, and its answers: lines of JSON with a mark, whatever else is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from cputrain.bench.child import kill_process_group
from cputrain.bench.measurement import clean_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MARK = "cputrain: "
"""Prefix of an answer; lines without it are output of libraries."""


class EndedError(Exception):
    """The process has ended; how, as half a sentence."""

    def __init__(self, how: str, code: int) -> None:
        super().__init__(how)
        self.code = code


class Process:
    """The process of one backend; the caller must call `end`."""

    def __init__(self, *words: str, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (until the process ends)
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._child = subprocess.Popen(
            # -P: the working folder must not put a module of its own in the way
            [sys.executable, "-P", "-m", "cputrain.backends", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**clean_environment(), **environment},
            # a group of its own, so that compilers that it has started end with it
            process_group=0 if os.name == "posix" else None,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(MARK):
                self._answers.put(json.loads(text.removeprefix(MARK)))
        self._answers.put(None)

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request; if the process has ended, `answer` raises."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer, or None after `seconds`. Raises EndedError."""
        try:
            found = self._answers.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        if found is not None:
            return found
        self._answers.put(None)  # whoever asks once more hears the same
        code = self._child.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        raise EndedError(f"{how_ended(code)}{f': {said[-1][:200]}' if said else ''}", code)

    def end(self) -> None:
        """Kill the process and its children."""
        kill_process_group(self._child)
        self._reader.join(1.0)
        for pipe in (self._child.stdin, self._child.stdout, self._stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it holds what nobody has read
                    pipe.close()


def how_ended(code: int) -> str:
    """Describe an exit code, as half a sentence."""
    if code >= 0:
        return f"ended with code {code}"
    import signal

    known = {one.value: one.name for one in signal.Signals} if os.name == "posix" else {}
    return f"was ended by {known.get(-code, f'signal {-code}')}"
