"""The end of a rank: its error is told to the agent, and threads let go of its gradients.

The agent's account of a failed job has the traceback of the rank that failed first, where that rank
has written it to a file of its own.

A thread of gloo's releases the tensors of the last exchange after it has told of its end. Where
Python's own end has begun by then, that ends the process with SIGABRT ("terminate called without an
active exception"): a rank that has done all its work counts as failed, and all are started again.
So Python's end waits a moment, in which such a thread gets the interpreter.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

MOMENT = 0.05
"""Seconds; a thread that is ready to run needs microseconds of them."""


def let_go(owner: int) -> None:
    """Called when the interpreter ends."""
    if os.getpid() == owner:  # not where a worker that was forked ends
        time.sleep(MOMENT)


def tell_errors() -> None:
    """Have the error that ends this process written where the agent looks for it."""
    shown = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        shown(kind, error, where)
        if ERROR_FILE in os.environ and not isinstance(error, KeyboardInterrupt):
            import json
            from contextlib import suppress
            from traceback import format_exception

            callstack = "".join(format_exception(kind, error, where))
            extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
            message = {"message": f"{kind.__name__}: {error}", "extraInfo": extra}
            path = os.environ[ERROR_FILE]
            with suppress(OSError):
                with open(f"{path}.new", "w") as file:
                    json.dump({"message": message}, file)
                os.replace(f"{path}.new", path)  # whole, or not at all

    sys.excepthook = tell
