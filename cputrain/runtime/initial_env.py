"""Environment that this process started with, which the dynamic loader and glibc have read.

Later changes of `os.environ` have no effect on them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
"""Prefixes of variables that are read only when a process starts."""


def initial_environ() -> dict[str, str]:
    """Return the environment at process start; the current one where it is not known."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:  # not Linux
        return dict(os.environ)
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def effective_environ() -> dict[str, str]:
    """Return the current environment, with the initial values of variables read at start."""
    return {**_without_start_variables(os.environ), **_start_variables(initial_environ())}


def _without_start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if not name.startswith(READ_AT_START)
    }


def _start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def started_with(variables: Mapping[str, str]) -> bool:
    """Return whether the process started with all of these variables; False for none."""
    initial = initial_environ()
    return bool(variables) and all(initial.get(name) == value for name, value in variables.items())
