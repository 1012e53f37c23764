"""The end of a rank: threads that exchanged its gradients let go of them before Python is gone.

A thread of gloo's releases the tensors of the last exchange after it has told of its end. Where
Python's own end has begun by then, that ends the process with SIGABRT ("terminate called without an
active exception"): a rank that has done all its work counts as failed, and all are started again.
So Python's end waits a moment, in which such a thread gets the interpreter.
"""

from __future__ import annotations

import os
import time

MOMENT = 0.05
"""Seconds; a thread that is ready to run needs microseconds of them."""


def let_go(owner: int) -> None:
    """Called when the interpreter ends."""
    if os.getpid() == owner:  # not where a worker that was forked ends
        time.sleep(MOMENT)
