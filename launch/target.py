"""Read the target of a launch from the command line, and find its executable."""

from __future__ import annotations

import os
import sys

from cputrain.errors import NotExecutable, NotFound, UsageError
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LAUNCH_USAGE = (
    "Usage: cputrain launch [options] train.py [its arguments], -m package.module, "
    "or --cmd -- command"
)


def read_target(
    words: Sequence[str], *, module: bool = False, command: bool = False, usage: str = LAUNCH_USAGE
) -> Target:
    """Parse the target from the words after cputrain's options.

    Args:
        words: The words.
        module: Whether the words name a module (-m).
        command: Whether the words are any command (--cmd).
        usage: Advice where there are none.

    Raises:
        UsageError: There are no words, or both switches are given.
    """
    if module and command:
        raise UsageError("--module", "cannot be given with --cmd", do="Leave one of them out.")
    arguments = tuple(words)
    if command and arguments[:1] == ("--",):
        arguments = arguments[1:]
    if not arguments:
        raise UsageError("the script", "is missing", do=usage)
    kind = TargetKind.MODULE if module else TargetKind.COMMAND if command else TargetKind.SCRIPT
    if kind is TargetKind.SCRIPT and _is_cputrain(arguments[0]):
        kind = TargetKind.COMMAND  # as in: cputrain launch cputrain launch x.py
    return Target(kind=kind, name=arguments[0], arguments=arguments[1:])


def _is_cputrain(word: str) -> bool:
    return os.path.basename(word) == "cputrain" and not os.path.isfile(word)


def find_executable(
    target: Target, environment: Mapping[str, str], *, is_launch: bool = True
) -> str:
    """Return the path of the executable that runs the target.

    Args:
        target: The target.
        environment: Environment, for PATH.
        is_launch: Whether the command could run what is no Python script, for messages.

    Raises:
        NotFound: The script or command does not exist.
        NotExecutable: It exists, but cannot be read or executed.
    """
    if target.kind is TargetKind.COMMAND:
        return _find_command(target.name, environment.get("PATH", os.defpath))
    if target.kind is TargetKind.SCRIPT and target.name != "-":
        _check_script(target, is_launch=is_launch)
    if not sys.executable:
        raise NotFound("the Python interpreter", "has no known path", do="Start it by its path.")
    return sys.executable


def _check_script(target: Target, *, is_launch: bool) -> None:
    """Raise NotFound or NotExecutable unless it is a readable script, folder or archive."""
    path = target.name
    if not os.path.lexists(path):
        from cputrain.launch.hints import script_hint

        folder = os.path.dirname(path)
        raise NotFound(
            f"the script {path}",
            "does not exist",
            found=f"no folder {folder}"
            if folder and not os.path.isdir(folder)
            else f"no such file in {folder or os.getcwd()}",
            do=script_hint(target, is_launch=is_launch),
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
            do=f"Check it with: ls -l {path}",
        )
    if path.endswith((".ipynb", ".sh", ".bash")) and os.path.isfile(path):
        _check_is_python(path)


def _check_is_python(path: str) -> None:
    """Raise NotExecutable if a file that is named as a notebook or a shell script is one."""
    import ast

    with open(path, "rb") as file:
        text = file.read()
    is_notebook = path.endswith(".ipynb") and text.lstrip().startswith(b"{")
    if not is_notebook:
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            pass
        else:
            return  # it is Python, whatever its name is
    raise NotExecutable(
        f"the script {path}",
        "must be a Python script",
        found="a notebook" if is_notebook else "a shell script",
        do=f"Run it in Jupyter after %load_ext cputrain, or: jupyter nbconvert --to script {path}"
        if is_notebook
        else f"Run: cputrain launch --cmd -- bash {path}",
    )


def _find_command(name: str, path: str) -> str:
    """Return the path of a command in PATH; raise NotFound or NotExecutable."""
    candidates = (
        [name] if os.path.dirname(name) else [os.path.join(p, name) for p in path.split(os.pathsep)]
    )
    existing = [candidate for candidate in candidates if os.path.isfile(candidate)]
    for candidate in existing:
        if os.access(candidate, os.X_OK):
            return candidate
    if existing or any(os.path.isdir(candidate) for candidate in candidates[:1] if "/" in name):
        raise NotExecutable(
            f"the command {name}",
            "must be an executable file",
            found=existing[0] if existing else "a folder",
            do="A Python script needs no --cmd: cputrain launch script.py",
        )
    raise NotFound(f"the command {name}", "does not exist", do="Check its name, or give its path.")
