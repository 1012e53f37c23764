"""The one seam through which the system is read.

Everything in this package that asks the machine a question does so through a `Source`: the live
root, a copied sysroot, or a capture. So a test reads a 96-core Epyc as easily as the machine it
runs on, and a bug report carries the machine it is about.

Paths are absolute, as the machine itself would write them: "/sys/devices/system/cpu/online".
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Source(Protocol):
        """Where facts are read from. Absent and unreadable files are None, never an exception."""

        live: bool
        """Whether this is the machine we run on, so that system calls may be asked too."""

        def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
            """The first `limit` bytes of a file."""

        def names(self, path: str) -> tuple[str, ...]:
            """What a folder holds, sorted; empty for one that is absent."""

        def link(self, path: str) -> str | None:
            """Where a symbolic link points to, as written in it."""

        def environment(self) -> Mapping[str, str]:
            """The environment variables of the process whose machine this is."""

        def libc(self) -> str | None:
            """The C library as "glibc 2.36"; None where it cannot be told."""


class RootSource:
    """A file tree: the live root, or a sysroot that was copied from another machine."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        self.live = self.root == "/"
        self._prefix = "" if self.live else self.root

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        try:
            # os.open and one read: a fifth of the time of open(), and there are thousands of files
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
        except OSError:  # sysfs answers EINVAL or ENODEV for values it does not have
            return None
        finally:
            os.close(descriptor)

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self._prefix + path)))
        except OSError:
            return ()

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(self._prefix + path)
        except OSError:
            return None

    def environment(self) -> Mapping[str, str]:
        return os.environ if self.live else {}

    def libc(self) -> str | None:
        if not self.live or not hasattr(os, "confstr"):
            return None
        try:
            return os.confstr("CS_GNU_LIBC_VERSION")
        except ValueError:  # musl and macOS do not know the name
            return None


def text(source: Source, path: str, limit: int = 1 << 20) -> str | None:
    """A file as text without the white space around it; None where it cannot be read."""
    raw = source.raw(path, limit)
    return None if raw is None else raw.decode("utf-8", "replace").strip("\0 \t\r\n")


def number(source: Source, path: str) -> int | None:
    """A file that holds one whole number; None where it cannot be read or holds something else."""
    found = text(source, path, 64)
    if not found:
        return None
    try:
        return int(found)
    except ValueError:
        return None
