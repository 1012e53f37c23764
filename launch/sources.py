"""Options that select the machine a command describes: this one, a sysroot or a capture."""

from __future__ import annotations

import os

from cputrain.errors import SourceError, UsageError
from cputrain.launch.options import Option
from cputrain.machine import RootSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.launch.options import Parsed
    from cputrain.machine.source import Source

SOURCE_OPTIONS = (
    Option(flag="--sysroot", takes="DIR", help="read a machine whose sys/ and proc/ are in DIR"),
    Option(flag="--from", takes="FILE", help="read a machine from a file of info --capture"),
)


def chosen_source(parsed: Parsed) -> Source:
    """Return the source of machine facts that the command line names; this machine by default."""
    sysroot, capture = parsed.values.get("--sysroot"), parsed.values.get("--from")
    if sysroot is not None and capture is not None:
        raise UsageError("--sysroot", "cannot be given with --from", do="Leave one of them out.")
    if capture is not None:
        from cputrain.machine.capture import read_capture

        return read_capture(capture)
    if sysroot is None:
        return RootSource()
    if not any(os.path.isdir(os.path.join(sysroot, name)) for name in ("sys", "proc")):
        raise SourceError(
            f"--sysroot {sysroot}",
            "must be a folder with sys/ and proc/ of a machine",
            found="no such folder" if not os.path.isdir(sysroot) else "neither of them",
            do="Copy them there, or read a capture with --from FILE.",
        )
    return RootSource(sysroot)
