"""A view of the file system in which a trial may write what it likes, and nothing of it stays.

A user namespace, and in it every folder under an overlay: reads go through, writes and deletions
lie in memory, and are gone with the last process. What is not a file is not held back: a network, a
GPU, shared memory.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18

LEFT = ("/proc", "/sys", "/dev")
"""What holds no files of anybody."""


def enter(scratch: str, kept: str | None = None) -> list[str]:
    """Called in a process that is about to become the trial: from here on, it is contained.

    `scratch` is an empty folder; what is written to `kept` stays. Raises OSError where the system
    does not allow it. Returns the folders that could not be, which are those that nobody may write
    to on most systems.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, here = os.getuid(), os.getgid(), os.getcwd()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        places = mounted(file.read())
    _call(libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    _call(libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    # an overlay's own folders must not lie in what it is over
    _call(libc.mount, b"tmpfs", os.fsencode(scratch), b"tmpfs", 0, None)
    inside = os.open(scratch, os.O_RDONLY)
    beneath = None if kept is None else os.open(kept, os.O_RDONLY)
    open_to_writes = []
    try:
        for number, folder in enumerate(folders(places)):
            try:
                _cover(libc.mount, folder, f"/proc/self/fd/{inside}/{number}")
            except OSError:
                open_to_writes.append(folder)
        if kept is not None:
            own = f"/proc/self/fd/{beneath}"
            _call(libc.mount, os.fsencode(own), os.fsencode(kept), None, MS_BIND, None)
    finally:
        os.close(inside)
        if beneath is not None:
            os.close(beneath)
    os.chdir(here)  # what it was in lies beneath now
    return [folder for folder in open_to_writes if os.access(folder, os.W_OK)]


def run(scratch: str, kept: str, *command: str) -> None:
    """Become a command that is contained so."""
    enter(scratch, kept)
    os.execvp(command[0], command)


def _cover(mount: object, folder: str, own: str) -> None:
    upper, work = f"{own}/upper", f"{own}/work"
    os.makedirs(upper)
    os.makedirs(work)
    there = os.stat(folder)
    os.chmod(upper, there.st_mode & 0o7777)
    options = f"lowerdir={folder},upperdir={upper},workdir={work},userxattr"
    _call(mount, b"overlay", os.fsencode(folder), b"overlay", 0, os.fsencode(options))


def mounted(text: str) -> set[str]:
    """Where something is mounted, from /proc/self/mountinfo."""
    fields = (line.split(" ") for line in text.splitlines())
    return {line[4].encode("latin-1", "replace").decode("unicode_escape") for line in fields}


def folders(places: set[str], top: str = "/") -> Iterator[str]:
    """The folders to cover: as few as have no other file system mounted within."""
    try:
        with os.scandir(top) as entries:
            found = sorted(one.path for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:  # nobody may look into it, so nobody writes there
        return
    for path in found:
        if path in LEFT:
            continue
        if any(place.startswith(path + "/") for place in places):
            yield from folders(places, path)
        elif not any(letter in path for letter in ",:\\"):  # mount has no way to spell them
            yield path


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _call(function: object, *args: object) -> None:
    call: Callable[..., int] = function  # type: ignore[assignment]
    if call(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
