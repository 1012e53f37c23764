"""Imported by a fork server before it serves: its workers find torch loaded.

The server is started with Ctrl-C blocked, and processes that it starts for others are not to be.
"""

from __future__ import annotations

import signal

import cputrain.pool.worker  # noqa: F401

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.sigtimedwait({signal.SIGINT}, 0)  # meant for who started it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
