"""One thread for each worker: there are as many workers as there is work for cores."""

from __future__ import annotations

import os
import sys

import torch

_LIMITS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def one_thread(*, forked: bool) -> None:
    """Give torch one thread, and NumPy too."""
    torch.set_num_threads(1)
    if not forked:
        limit_numpy()


def limit_numpy() -> None:
    """One thread for NumPy's linear algebra; what the user set is left alone.

    Not in a forked worker: OpenBLAS, asked for its number of threads after a fork, first starts
    all those that it had before, and they spin for a while.
    """
    if "numpy" in sys.modules and not any(name in os.environ for name in _LIMITS):
        import threadpoolctl

        threadpoolctl.threadpool_limits(1, user_api="blas")
