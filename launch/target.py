"""The launch target: a script, a module, standard input, or any command."""

from __future__ import annotations

import os
import sys
from enum import StrEnum

from cputrain.errors import NotExecutable, NotFound, UsageError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TargetKind(StrEnum):
    """Kind of launch target."""

    SCRIPT = "script"
    """A file, a folder or zip archive with __main__.py, or "-": train.py."""

    MODULE = "module"
    """An importable module: -m package.train."""

    COMMAND = "command"
    """Anything executable: --cmd -- torchrun train.py."""


class Target(Record):
    """A launch target with its arguments."""

    kind: TargetKind
    """Kind of target."""

    name: str
    """Script path, module name or command name."""

    arguments: tuple[str, ...]
    """Arguments of the target."""

    def argv(self, python_arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the complete command line."""
        if self.kind is TargetKind.COMMAND:
            return (self.name, *self.arguments)
        switch: tuple[str, ...] = ("-m",) if self.kind is TargetKind.MODULE else ()
        if self.kind is TargetKind.SCRIPT and self.name.startswith("-") and self.name != "-":
            switch = ("--",)  # a file's name all the same
        return (sys.executable, *python_arguments, *switch, self.name, *self.arguments)


def read_target(rest: Sequence[str], *, module: bool, command: bool) -> Target:
    """Parse the target from the words after cputrain's options."""
    if module and command:
        raise UsageError("--module", "cannot be given with --cmd", do="Leave one of them out.")
    words = tuple(rest)
    if command and words[:1] == ("--",):
        words = words[1:]
    if not words:
        raise UsageError(
            "the script",
            "is missing",
            do="Say: cputrain launch [options] train.py [its arguments], -m package.module, "
            "or --cmd -- command",
        )
    kind = TargetKind.MODULE if module else TargetKind.COMMAND if command else TargetKind.SCRIPT
    if kind is TargetKind.SCRIPT and _is_this_program(words[0]):
        kind = TargetKind.COMMAND  # cputrain launch cputrain launch x.py
    return Target(kind=kind, name=words[0], arguments=words[1:])


def _is_this_program(word: str) -> bool:
    return os.path.basename(word) == "cputrain" and not os.path.isfile(word)


def find(target: Target, environment: Mapping[str, str]) -> str:
    """Return the executable's path; raise an error if it cannot run, before any change."""
    if target.kind is TargetKind.COMMAND:
        return _find_command(target.name, environment.get("PATH", os.defpath))
    if target.kind is TargetKind.SCRIPT and target.name != "-":
        _check_script(target.name)
    if not sys.executable:
        raise NotFound("the Python interpreter", "has no known path", do="Start it by its path.")
    return sys.executable


def _check_script(path: str) -> None:
    if not os.path.lexists(path):
        raise NotFound(
            f"the script {path}",
            "does not exist",
            found=f"no such file in {os.getcwd()}",
            do="A command that is no Python script starts with: cputrain launch --cmd -- ...",
        )
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        raise NotExecutable(
            f"the script {path}",
            "must be a file",
            found="a folder without __main__.py",
            do="Name the script inside it.",
        )
    if not os.access(path, os.R_OK):
        raise NotExecutable(
            f"the script {path}",
            "must be readable",
            found="no permission, or a broken link",
            do=f"Try: ls -l {path}",
        )


def _find_command(name: str, path: str) -> str:
    candidates = (
        [name] if os.path.dirname(name) else [os.path.join(p, name) for p in path.split(os.pathsep)]
    )
    there = [candidate for candidate in candidates if os.path.isfile(candidate)]
    for candidate in there:
        if os.access(candidate, os.X_OK):
            return candidate
    if there or any(os.path.isdir(candidate) for candidate in candidates[:1] if "/" in name):
        raise NotExecutable(
            f"the command {name}",
            "must be an executable file",
            found=there[0] if there else "a folder",
            do="A Python script needs no --cmd: cputrain launch script.py",
        )
    raise NotFound(f"the command {name}", "does not exist", do="Check its name, or give its path.")
