"""Shutdown of a rank: write its error for the elastic agent, and let gloo's threads finish.

The agent's report of a failed job has the traceback of the rank that failed first, if that rank has
written it to its error file.

A gloo thread releases the tensors of the last all-reduce after it has signalled completion. If
interpreter finalization has begun by then, the process ends with SIGABRT ("terminate called without
an active exception"): a rank that has done all its work counts as failed, and all are restarted.
So finalization waits a moment, in which such a thread can take the GIL.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

WAIT_S = 0.05
"""Seconds of that wait; a thread that is ready to run needs microseconds."""


def wait_for_threads(pid: int) -> None:
    """Wait for gloo's threads; an exit handler of the process `pid`."""
    if os.getpid() == pid:  # not in forked workers
        time.sleep(WAIT_S)


def write_errors() -> None:
    """Install an excepthook that writes the error to the file that the elastic agent reads."""
    show = sys.excepthook

    def write_error(
        error_type: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        show(error_type, error, traceback)
        if ERROR_FILE in os.environ and not isinstance(error, KeyboardInterrupt):
            import json
            from contextlib import suppress
            from traceback import format_exception

            callstack = "".join(format_exception(error_type, error, traceback))
            extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
            message = {"message": f"{error_type.__name__}: {error}", "extraInfo": extra}
            path = os.environ[ERROR_FILE]
            with suppress(OSError):
                with open(f"{path}.new", "w") as file:
                    json.dump({"message": message}, file)
                os.replace(f"{path}.new", path)  # atomic

    sys.excepthook = write_error
