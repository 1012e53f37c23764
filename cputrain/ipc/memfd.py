"""Memory without a name: a file that is nowhere, and gone with the last process that has it."""

from __future__ import annotations

import errno
import os

NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL: nothing in it will be executed. Some systems allow no other."""


def create_memfd() -> int:
    """The descriptor of an empty one, which child processes do not inherit. Raises OSError."""
    try:
        return os.memfd_create("cputrain", os.MFD_CLOEXEC | NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("cputrain", os.MFD_CLOEXEC)  # a kernel that does not know it yet
