"""Memory without a name in a file system (memfd), freed with the last process that has it open."""

from __future__ import annotations

import errno
import os

NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL: the file cannot be executed; with vm.memfd_noexec=2, required by the kernel."""


def create_memfd() -> int:
    """Create an empty memfd and return its descriptor, which is closed on exec.

    Raises:
        OSError: The system has no descriptor or no memory left.
    """
    try:
        return os.memfd_create("cputrain", os.MFD_CLOEXEC | NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("cputrain", os.MFD_CLOEXEC)  # kernels before 6.3 lack the flag
