"""The commands: a module for each, with its table `COMMAND` and its function `main`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.launch.command import Command


def every_command() -> list[Command]:
    """Return every command, in the order of the help."""
    from importlib import import_module

    from cputrain.launch.cli import VERBS

    return [import_module(f"{__name__}.{verb}").COMMAND for verb in VERBS]
