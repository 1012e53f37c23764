"""Child processes that are measured: their environment, their end, and cases with JSON answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from cputrain.errors import CputrainError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

TIMEOUT_S = 900.0
"""Timeout of a case in seconds."""


class CaseFailedError(Exception):
    """Error for a benchmark case that timed out or whose process exited with a nonzero code."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        """Exit code of the process; None if it timed out."""


def clean_environment() -> dict[str, str]:
    """Return a copy of the environment without `CPUTRAIN_*` variables."""
    return {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith("CPUTRAIN_")
    }


def start_process(
    command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own and a clean environment, with stdin closed."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=clean_environment(),
        # so that its workers can be killed with it
        process_group=0 if os.name == "posix" else None,
    )


def run_case(
    module: str, request: dict[str, Any], *, timeout_s: float | None = None
) -> dict[str, Any]:
    """Run `python -m module` with a JSON request and return its JSON answer.

    Args:
        module: Name of a package whose `__main__` runs one benchmark case.
        request: Passed as JSON in the last argument.
        timeout_s: Seconds after which it is killed; TIMEOUT_S by default.

    Raises:
        CaseFailedError: The process timed out or did not exit with code 0.
    """
    # -P: a module in the working directory must not shadow an installed one
    command = [sys.executable, "-P", "-m", module, json.dumps(request)]
    # files, not pipes: a worker that outlives the process would keep a pipe open
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start_process(command, stdout, stderr)
        try:
            process.wait(timeout_s or TIMEOUT_S)
        except BaseException as error:
            kill_process_group(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CaseFailedError(f"no exit within {timeout_s or TIMEOUT_S:g} s") from None
            raise
        lines = {file: _read_lines(file) for file in (stdout, stderr)}
    if process.returncode:
        kill_process_group(process)
        last_line = lines[stderr][-1:] or ["no output on stderr"]
        raise CaseFailedError(f"exit code {process.returncode}: {last_line[0]}", process.returncode)
    answer: dict[str, Any] = json.loads(lines[stdout][-1])
    return answer


def answer_case(run: Callable[[dict[str, Any]], object]) -> int:
    """Run the case that `run_case` requested of this process, print its answer, return exit code.

    Args:
        run: Computes the answer, JSON types, from the request.
    """
    try:
        answer = run(json.loads(sys.argv[1]))
    except CputrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(answer))
    return 0


def kill_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its process group (on Windows the process alone), then reap it."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # the group is empty
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _read_lines(file: Any) -> list[str]:
    """Return the lines of a file from its start, without leading and trailing whitespace."""
    file.seek(0)
    text: str = file.read().decode("utf-8", "replace")
    return text.strip().splitlines()
