"""`cputrain completions`: print completions for a shell."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.launch.command import Command, Example
from cputrain.suggestions import closest, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SHELLS = ("bash", "zsh", "fish")
"""Shells that have completions; each is a module of cputrain.launch.completions."""

COMMAND = Command(
    name="completions",
    form="bash|zsh|fish",
    summary="Prints a script that completes commands, options and their values in a shell.",
    words=SHELLS,
    examples=(
        Example(line="source <(cputrain completions bash)", does="in this shell"),
        Example(line="cputrain completions bash >> ~/.bashrc", does="in every bash"),
        Example(line='cputrain completions zsh > "${fpath[1]}/_cputrain"', does="in every zsh"),
        Example(
            line="cputrain completions fish > ~/.config/fish/completions/cputrain.fish",
            does="in every fish",
        ),
    ),
    groups=(),
)


def main(argv: Sequence[str]) -> int:
    """Print the completion script of a shell."""
    parsed = COMMAND.read(argv)
    if parsed is None:
        return 0
    shell = parsed.rest[0].rpartition("/")[2] if parsed.rest else ""
    if shell not in SHELLS or len(parsed.rest) > 1:
        raise UsageError(
            "the shell",
            f"must be one of {', '.join(SHELLS)}",
            found=" ".join(parsed.rest) or "nothing",
            do=did_you_mean(closest(shell, SHELLS)) or "For example: cputrain completions bash",
        )
    from importlib import import_module

    print(import_module(f"cputrain.launch.completions.{shell}").script(), end="")
    return 0
