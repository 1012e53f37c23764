"""Sandbox in which a trial sees the file system as it is, and its writes are discarded.

The trial runs in a user namespace and a mount namespace of its own, with an overlay over every
folder: reads pass through; writes and deletions stay in memory and vanish with the last process.
Networks, GPUs and shared memory are not isolated.
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

KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Virtual file systems, which get no overlay: they hold no user files."""


def enter(scratch: str, persistent: str | None = None) -> list[str]:
    """Move this process into the sandbox; call it in a process that is about to become the trial.

    Args:
        scratch: An empty folder, for the tmpfs that holds what is written.
        persistent: A folder whose writes are kept.

    Returns:
        The folders that could not be covered and that this user may write to; usually none.

    Raises:
        OSError: The system does not allow user namespaces or overlays in them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, working_folder = os.getuid(), os.getgid(), os.getcwd()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mount_points = parse_mount_points(file.read())
    _call(libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    _call(libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    # the upper and work folders of an overlay must lie outside its lower folder
    _call(libc.mount, b"tmpfs", os.fsencode(scratch), b"tmpfs", 0, None)
    scratch_fd = os.open(scratch, os.O_RDONLY)
    persistent_fd = None if persistent is None else os.open(persistent, os.O_RDONLY)
    uncovered = []
    try:
        for number, folder in enumerate(folders_to_cover(mount_points)):
            try:
                _mount_overlay(libc.mount, folder, f"/proc/self/fd/{scratch_fd}/{number}")
            except OSError:
                uncovered.append(folder)
        if persistent is not None:
            original = f"/proc/self/fd/{persistent_fd}"
            _call(libc.mount, os.fsencode(original), os.fsencode(persistent), None, MS_BIND, None)
    finally:
        os.close(scratch_fd)
        if persistent_fd is not None:
            os.close(persistent_fd)
    os.chdir(working_folder)  # the old working folder lies beneath the overlay now
    return [folder for folder in uncovered if os.access(folder, os.W_OK)]


def run(scratch: str, persistent: str, *command: str) -> None:
    """Enter the sandbox and replace this process by a command."""
    enter(scratch, persistent)
    os.execvp(command[0], command)


def _mount_overlay(mount: object, folder: str, storage: str) -> None:
    upper, work = f"{storage}/upper", f"{storage}/work"
    os.makedirs(upper)
    os.makedirs(work)
    status = os.stat(folder)
    os.chmod(upper, status.st_mode & 0o7777)
    options = f"lowerdir={folder},upperdir={upper},workdir={work},userxattr"
    _call(mount, b"overlay", os.fsencode(folder), b"overlay", 0, os.fsencode(options))


def parse_mount_points(text: str) -> set[str]:
    """Return the mount points listed in the text of /proc/self/mountinfo."""
    fields = (line.split(" ") for line in text.splitlines())
    return {line[4].encode("latin-1", "replace").decode("unicode_escape") for line in fields}


def folders_to_cover(mount_points: set[str], top: str = "/") -> Iterator[str]:
    """Yield the folders to mount overlays on: the largest ones without a mount point inside."""
    try:
        with os.scandir(top) as entries:
            paths = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder that cannot be read is not written to, either
        return
    for path in paths:
        if path in KERNEL_FOLDERS:
            continue
        if any(mount_point.startswith(path + "/") for mount_point in mount_points):
            yield from folders_to_cover(mount_points, path)
        elif not any(letter in path for letter in ",:\\"):  # mount options cannot hold these
            yield path


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _call(function: object, *args: object) -> None:
    """Call a function of libc; raise OSError if it fails."""
    call: Callable[..., int] = function  # type: ignore[assignment]
    if call(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
