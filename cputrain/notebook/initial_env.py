"""What this process began with: the loader and glibc have read it, whatever was set since."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")


def began_with() -> dict[str, str]:
    """The environment at the start; the present one where the system does not tell."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:  # not Linux
        return dict(os.environ)
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def environment_here() -> dict[str, str]:
    """The present environment, with what was read at the start as it was then."""
    return {**_without(os.environ), **_only(began_with())}


def _without(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if not name.startswith(READ_AT_START)
    }


def _only(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def has(variables: Mapping[str, str]) -> bool:
    """Whether this process began with all of these."""
    there = began_with()
    return bool(variables) and all(there.get(name) == value for name, value in variables.items())


def command_of() -> tuple[str, ...]:
    """What this process is, as it would be named behind `cputrain launch`."""
    if "ipykernel" in sys.modules:
        return ("--cmd", "--", "jupyter", "lab")
    if "IPython" in sys.modules and hasattr(sys, "ps1"):
        return ("--cmd", "--", "ipython")
    if hasattr(sys, "ps1") or not sys.argv[0] or sys.argv[0] == "-c":
        return ("--cmd", "--", "python")
    return (sys.argv[0],)
