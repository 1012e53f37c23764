"""Target of a launch: a script, a module, standard input, or any command."""

from __future__ import annotations

import sys
from enum import StrEnum

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


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

    @property
    def launch_words(self) -> tuple[str, ...]:
        """Words that stand behind the options of `cputrain launch` to run this target."""
        switches = {TargetKind.MODULE: ("-m",), TargetKind.COMMAND: ("--cmd", "--")}
        return (*switches.get(self.kind, ()), self.name, *self.arguments)

    def argv(self, python_arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the complete command line."""
        if self.kind is TargetKind.COMMAND:
            return (self.name, *self.arguments)
        switch: tuple[str, ...] = ("-m",) if self.kind is TargetKind.MODULE else ()
        if self.kind is TargetKind.SCRIPT and self.name.startswith("-") and self.name != "-":
            switch = ("--",)  # a file name that begins with a dash
        return (sys.executable, *python_arguments, *switch, self.name, *self.arguments)
