"""Application of a plan to this process: environment, CPU mask, memory policy, then exec.

All of these survive exec, so no launcher process stays in between: signals, exit code and terminal
are the program's own.
"""

from __future__ import annotations

import os
import sys

from cputrain.errors import LaunchError, NotExecutable, NotFound
from cputrain.machine import format_list
from cputrain.record import Record
from cputrain.settings.memory_policy import interleave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn


class Start(Record):
    """Program with everything that is set before it is executed."""

    program: str
    """Path of the executable."""

    argv: tuple[str, ...]
    """Command line of the program."""

    environment: dict[str, str]
    """Variables that are added to this process's environment."""

    cpus: tuple[int, ...] | None
    """CPU mask; None keeps this process's mask."""

    interleave: tuple[int, ...] | None
    """NUMA nodes to interleave memory over; None keeps this process's policy."""

    def shell(self) -> str:
        """Return a shell command that does the same."""
        from shlex import join, quote

        words = [f"{name}={quote(value)}" for name, value in sorted(self.environment.items())]
        words = ["env", *words] if words else []
        if self.interleave is not None:
            words += ["numactl", f"--interleave={format_list(self.interleave)}"]
        if self.cpus is not None:
            words += ["taskset", "--cpu-list", format_list(self.cpus)]
        return " ".join([*words, join((self.program, *self.argv[1:]))])


def run(start: Start, notes: Sequence[str], *, quiet: bool) -> NoReturn:
    """Set the mask and the memory policy, and replace this process by the program.

    Args:
        notes: Lines for standard error, printed with a line for each setting that failed.
        quiet: Whether to print nothing.
    """
    lines = list(notes)
    if start.interleave is not None:
        failure = interleave(start.interleave)
        if failure:
            lines.append(failure)
    if start.cpus is not None:
        try:
            os.sched_setaffinity(0, start.cpus)
        except OSError as error:
            lines.append(
                f"the CPU mask {format_list(start.cpus)} was refused ({error.strerror}); "
                "continuing without it"
            )
    # print(file=None) would write to standard output
    if lines and not quiet and sys.stderr is not None:
        print("cputrain: " + "; ".join(lines), file=sys.stderr, flush=True)
    _exec(start.program, start.argv, {**os.environ, **start.environment})


def _exec(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program; on Windows, run it and exit with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if sys.platform == "win32":  # exec would start a second process and return to the shell
        import subprocess

        sys.exit(subprocess.call([program, *argv[1:]], env=dict(environment)))
    # Python ignores SIGPIPE, and exec keeps ignored signals ignored: "... | head" would not end
    import _signal

    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(_signal, name):
            _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    try:
        os.execve(program, list(argv), dict(environment))
    except FileNotFoundError as error:
        raise NotFound(program, "could not be started", found=str(error.strerror)) from None
    except (PermissionError, OSError) as error:
        error_class = (
            NotExecutable if isinstance(error, PermissionError) or error.errno == 8 else LaunchError
        )
        raise error_class(
            program,
            "could not be started",
            found=str(error.strerror),
            do="A script needs a first line such as #!/bin/sh to be executable.",
        ) from None
