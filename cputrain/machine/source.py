"""Interface through which the package reads the system.

All readers of this package take a `Source`: the live root, a copied sysroot, or a capture. So a
test can read a 96-core Epyc, and a bug report can include the reporter's machine.

Paths are absolute paths on that machine: "/sys/devices/system/cpu/online".
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Source(Protocol):
        """Reader of system files. Absent and unreadable files give None, never an exception."""

        live: bool
        """Whether the source is the running machine, so that system calls apply too."""

        def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
            """Return the first `limit` bytes of a file."""

        def names(self, path: str) -> tuple[str, ...]:
            """Return the sorted entries of a folder; empty if it is absent."""

        def link(self, path: str) -> str | None:
            """Return the target of a symbolic link, as stored in the link."""

        def environment(self) -> Mapping[str, str]:
            """Return the environment variables of the process on that machine."""

        def libc(self) -> str | None:
            """Return the C library, such as "glibc 2.36"; None if unknown."""


class RootSource:
    """Source that reads a file tree: the live root, or a sysroot copied from another machine."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        self.live = self.root == "/"
        self._prefix = "" if self.live else self.root

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Return the first `limit` bytes of a file; None if it is unreadable."""
        try:
            # os.open takes a fifth of the time of open(), and there are thousands of files.
            descriptor = os.open(self._prefix + path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return None
        try:
            parts = []
            while limit > 0:
                part = os.read(descriptor, min(limit, 1 << 16))
                if not part:
                    break
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        except OSError:  # sysfs fails with EINVAL or ENODEV for unavailable values
            return None
        finally:
            os.close(descriptor)

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted entries of a folder; empty if it is unreadable."""
        try:
            return tuple(sorted(os.listdir(self._prefix + path)))
        except OSError:
            return ()

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None if it is unreadable."""
        try:
            return os.readlink(self._prefix + path)
        except OSError:
            return None

    def environment(self) -> Mapping[str, str]:
        """Return this process's environment variables; empty for a sysroot."""
        return os.environ if self.live else {}

    def libc(self) -> str | None:
        """Return this process's C library, such as "glibc 2.36"; None if unknown."""
        if not self.live or not hasattr(os, "confstr"):
            return None
        try:
            return os.confstr("CS_GNU_LIBC_VERSION")
        except ValueError:  # musl and macOS lack CS_GNU_LIBC_VERSION
            return None


def text(source: Source, path: str, limit: int = 1 << 20) -> str | None:
    """Return a file's text without surrounding white space; None if it is unreadable."""
    raw = source.raw(path, limit)
    return None if raw is None else raw.decode("utf-8", "replace").strip("\0 \t\r\n")


def number(source: Source, path: str) -> int | None:
    """Return the integer in a file; None if it is unreadable or not an integer."""
    digits = text(source, path, 64)
    if not digits:
        return None
    try:
        return int(digits)
    except ValueError:
        return None
