"""One case in a process of its own: asked in JSON, and answered in the last line that it prints."""

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
"""Seconds after which a case is taken for one that hangs."""


class CaseFailedError(Exception):
    """Why there is no answer."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code
        """What the process ended with; None where it was ended."""


def answer_of(module: str, request: dict[str, Any]) -> dict[str, Any]:
    """What `python -m module` answers."""
    # -P: the working folder must not put a module of its own in the way
    command = [sys.executable, "-P", "-m", module, json.dumps(request)]
    # files, not pipes: a worker that stays does not keep us waiting
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=clean_environment(),
            # a group of its own, so that the workers of one that hangs can be ended with it
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
    """The process, if it still runs, and the workers that it has left."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # nothing is left
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _lines(file: Any) -> list[str]:
    file.seek(0)
    text: str = file.read().decode("utf-8", "replace")
    return text.strip().splitlines()
