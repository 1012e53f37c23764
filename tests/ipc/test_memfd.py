"""Memory without a name, whatever the kernel knows of it."""

from __future__ import annotations

import errno
import os

import pytest

from cputrain.ipc import create_memfd
from cputrain.ipc.memfd import NOEXEC_SEAL

own = os.memfd_create


@pytest.fixture
def kernel(monkeypatch):
    """One that refuses some flags with an error."""

    def refuses(flags, error):
        def memfd_create(name, given):
            if bool(given & NOEXEC_SEAL) == flags:
                raise OSError(error, os.strerror(error))
            return own(name, given)

        monkeypatch.setattr(os, "memfd_create", memfd_create)

    return refuses


def is_memory(descriptor):
    os.write(descriptor, b"kept")
    try:
        return os.pread(descriptor, 9, 0) == b"kept" and not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_here():
    assert is_memory(create_memfd())


def test_a_kernel_before_6_3(kernel):
    kernel(True, errno.EINVAL)
    assert is_memory(create_memfd())


def test_a_system_that_allows_nothing_executable(kernel):
    kernel(False, errno.EACCES)
    assert is_memory(create_memfd())


def test_what_the_system_refuses_is_told(kernel):
    kernel(True, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        create_memfd()
