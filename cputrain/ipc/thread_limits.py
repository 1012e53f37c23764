"""Limits on the threads of torch and NumPy in a worker: workers are as many as there are cores."""

from __future__ import annotations

import os
import sys

import torch

_LIMIT_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def limit_to_one_thread(*, forked: bool) -> None:
    """Limit torch to one thread, and NumPy as well unless the worker was forked."""
    torch.set_num_threads(1)
    if not forked:
        limit_numpy_threads()


def limit_numpy_threads() -> None:
    """Limit NumPy's linear algebra to one thread, unless the user's environment sets a number.

    Do not call this in a forked worker: after a fork, OpenBLAS starts all of its threads again
    before it changes their number, and they spin for a while.
    """
    if "numpy" in sys.modules and not any(name in os.environ for name in _LIMIT_VARIABLES):
        import threadpoolctl

        threadpoolctl.threadpool_limits(1, user_api="blas")
