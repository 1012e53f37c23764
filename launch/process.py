"""Carrying a plan out: environment, CPU mask, memory policy, then the user's program in our place.

Everything set here survives `exec`, so no process of ours stays behind: signals, the exit code and
the terminal are the program's own.
"""

from __future__ import annotations

import os
import sys

from cputrain.errors import LaunchError, NotExecutable, NotFound
from cputrain.machine import format_list
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
"""The system call's number on each architecture; glibc has no function for it."""

MPOL_DEFAULT, MPOL_INTERLEAVE = 0, 3


class Start(Record):
    """Everything that makes the program start as planned."""

    program: str
    """The path of the executable."""

    argv: tuple[str, ...]
    """Its command line."""

    environment: dict[str, str]
    """Variables that are added to the present ones."""

    cpus: tuple[int, ...] | None
    """The CPU mask; None leaves it."""

    interleave: tuple[int, ...] | None
    """Memory nodes to interleave over; None leaves the policy."""

    def shell(self) -> str:
        """One shell command that does the same."""
        from shlex import join, quote

        words = [f"{name}={quote(value)}" for name, value in sorted(self.environment.items())]
        words = ["env", *words] if words else []
        if self.interleave is not None:
            words += ["numactl", f"--interleave={format_list(self.interleave)}"]
        if self.cpus is not None:
            words += ["taskset", "--cpu-list", format_list(self.cpus)]
        return " ".join([*words, join((self.program, *self.argv[1:]))])


def run(start: Start, say: Sequence[str], *, quiet: bool) -> NoReturn:
    """Become the program. `say` goes to standard error first, with what could not be set."""
    notes = list(say)
    if start.interleave is not None:
        problem = interleave(start.interleave)
        if problem:
            notes.append(problem)
    if start.cpus is not None:
        try:
            os.sched_setaffinity(0, start.cpus)
        except OSError as error:
            notes.append(
                f"the CPU mask {format_list(start.cpus)} was refused ({error.strerror}); "
                "going on without"
            )
    # print(file=None) would be standard output
    if notes and not quiet and sys.stderr is not None:
        print("cputrain: " + "; ".join(notes), file=sys.stderr, flush=True)
    _become(start.program, start.argv, {**os.environ, **start.environment})


def _become(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if sys.platform == "win32":  # exec there starts a second process and returns to the shell
        import subprocess

        sys.exit(subprocess.call([program, *argv[1:]], env=dict(environment)))
    # Python ignores SIGPIPE, and what is ignored stays so across exec: "... | head" would not end
    import _signal

    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(_signal, name):
            _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    try:
        os.execve(program, list(argv), dict(environment))
    except FileNotFoundError as error:
        raise NotFound(program, "could not be started", found=str(error.strerror)) from None
    except (PermissionError, OSError) as error:
        kind = (
            NotExecutable if isinstance(error, PermissionError) or error.errno == 8 else LaunchError
        )
        raise kind(
            program,
            "could not be started",
            found=str(error.strerror),
            do="A script needs a first line such as #!/bin/sh to be a command.",
        ) from None


def interleave(nodes: Sequence[int]) -> str:
    """Ask for memory interleaved over nodes, the nearest one's where there are none; what stood in
    the way, or nothing. It is for this thread and those it starts."""
    import ctypes

    number = SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return f"memory policies are not known on {os.uname().machine}; going on without"
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = max(nodes, default=0) // bits + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    policy = MPOL_INTERLEAVE if nodes else MPOL_DEFAULT
    # the kernel reads one bit less than it is told, a fault as old as the call
    if libc.syscall(number, policy, mask, words * bits + 1) == 0:
        return ""
    error = ctypes.get_errno()
    return (
        f"interleaved memory was refused ({os.strerror(error)}"
        f"{', as containers do without CAP_SYS_NICE' if error == 1 else ''}); going on without"
    )
