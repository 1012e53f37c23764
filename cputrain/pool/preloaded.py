"""Preloaded by the fork server, so that workers forked by it have torch imported already.

The server is started with SIGINT blocked; unblock it for processes that it starts for others.
"""

from __future__ import annotations

import signal

import cputrain.pool.worker  # noqa: F401

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.sigtimedwait({signal.SIGINT}, 0)  # drop a pending Ctrl-C, which the parent handles
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
