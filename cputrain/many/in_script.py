"""What a script calls so that `cputrain many` may run several of its jobs in one process."""

from __future__ import annotations

import json
import os
import sys

from cputrain.errors import UsageError
from cputrain.variables import STACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    Options = TypeVar("Options")

AT_MOST = 16
"""Largest number of jobs in one process, unless the script says otherwise."""

_arguments: list[list[str]] = []
"""Arguments of the jobs of this process, once they are read."""


def stackable(
    parse: Callable[[list[str]], Options], *names: str, at_most: int = AT_MOST
) -> list[Options]:
    """Return the options of each job that this process is to train, such as by `cputrain.Stack`.

    Run by python, that is one job: the command line's. `cputrain many` may have several jobs in
    one process if they differ in the named options alone. It reads names and `at_most` in the
    script's text, so these must be literals. Print a JSON object for each job, in this order: they
    become the results.

    Args:
        parse: Returns the options of a list of arguments, such as `parser.parse_args`.
        names: Attributes of the options in which the jobs may differ: "lr", "seed".
        at_most: Largest number of jobs in one process.

    Raises:
        UsageError: Nothing is named, the number is not positive, or jobs differ in more.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            "stackable",
            "must be given names of options in which the jobs may differ",
            found=repr(names),
            do='For example: stackable(parser.parse_args, "lr", "seed").',
        )
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise UsageError("at_most", "must be a positive number", found=repr(at_most))
    jobs = [parse(list(arguments)) for arguments in _read_arguments()]
    for job in jobs[1:]:
        _check_alike(jobs[0], job, names)
    return jobs


def _check_alike(first: object, job: object, names: Sequence[str]) -> None:
    """Raise UsageError if two jobs differ in more than the named options."""
    values, others = getattr(first, "__dict__", {}), getattr(job, "__dict__", {})
    different = [name for name in {*values, *others} if values.get(name) != others.get(name)]
    rest = sorted(set(different) - set(names))
    if rest:
        raise UsageError(
            "stackable",
            "must name every option in which jobs of one process differ",
            found=", ".join(rest),
        )


def _read_arguments() -> Sequence[list[str]]:
    """Return the arguments of each job of this process, and let the queue know."""
    path = os.environ.pop(STACK, None)  # processes that the script starts are no jobs
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                _arguments[:] = json.load(file)
            with open(taken_path(path), "w", encoding="ascii"):
                pass
        except OSError:  # the queue is gone, and with it the file
            return [sys.argv[1:]]
    return _arguments or [sys.argv[1:]]


def taken_path(path: str) -> str:
    """Return the path of the file that shows that a script has read the arguments."""
    return f"{path}.taken"
