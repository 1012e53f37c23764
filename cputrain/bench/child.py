"""Run one benchmark case in a subprocess: JSON request in argv, JSON answer on stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from cputrain.bench.measurement import clean_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 900.0
"""Timeout of a case in seconds."""


class CaseFailedError(Exception):
    """Case that timed out or whose process failed."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code
        """Exit code of the process; None if it timed out."""


def answer_of(module: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run `python -m module` with a JSON request and return its JSON answer.

    Raises:
        CaseFailedError: The process timed out or did not exit with code 0.
    """
    # -P: a module in the working directory must not shadow an installed one
    command = [sys.executable, "-P", "-m", module, json.dumps(request)]
    # files, not pipes: a worker that outlives the process would keep a pipe open
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=clean_environment(),
            # new process group, so that a timeout can kill the workers as well
            process_group=0 if os.name == "posix" else None,
        )
        try:
            child.wait(LONGEST)
        except BaseException as error:
            end_with_workers(child)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CaseFailedError(f"it did not end within {LONGEST:g} s") from None
            raise
        lines = {file: _lines(file) for file in (out, err)}
    if child.returncode:
        end_with_workers(child)
        last = lines[err][-1:] or ["it said nothing"]
        raise CaseFailedError(f"it ended with code {child.returncode}: {last[0]}", child.returncode)
    answer: dict[str, Any] = json.loads(lines[out][-1])
    return answer


def end_with_workers(child: subprocess.Popen[bytes]) -> None:
    """Kill the process and its process group, then reap the process."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # the group is empty
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _lines(file: Any) -> list[str]:
    file.seek(0)
    text: str = file.read().decode("utf-8", "replace")
    return text.strip().splitlines()
