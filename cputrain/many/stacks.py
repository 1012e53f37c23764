"""Find out which jobs may run in one process: those that their script says are stackable."""

from __future__ import annotations

import ast
import os

from cputrain.many.in_script import AT_MOST
from cputrain.record import Record
from cputrain.target import TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.many.job import Job
    from cputrain.target import Target

FUNCTION = "stackable"
"""Function that a script calls."""


class StackRule(Record):
    """What a script says of its jobs."""

    names: frozenset[str]
    """Options in which jobs of one process may differ."""

    at_most: int
    """Largest number of jobs in one process."""

    def allows(self, first: Job, job: Job) -> bool:
        """Return whether two jobs differ in nothing but these options."""
        if first is job:
            return True
        for name in {*first.parameters, *job.parameters}:
            is_fixed = name.replace("-", "_") not in self.names
            if is_fixed and first.parameters.get(name) != job.parameters.get(name):
                return False
        return (
            first.target.replace(arguments=()) == job.target.replace(arguments=())
            and first.variables == job.variables
            and (first.cores, first.memory_bytes, first.timeout_s)
            == (job.cores, job.memory_bytes, job.timeout_s)
            and len(first.target.arguments) == len(job.target.arguments)
            and all(
                word == its_word or self._is_value(first, word, job, its_word)
                for word, its_word in zip(first.target.arguments, job.target.arguments, strict=True)
            )
        )

    def _is_value(self, first: Job, word: str, job: Job, its_word: str) -> bool:
        """Return whether two arguments differ in the value of one of these options alone."""
        return any(
            word.replace(value, "\0") == its_word.replace(job.parameters.get(name, ""), "\0")
            for name, value in first.parameters.items()
            if value and job.parameters.get(name) and name.replace("-", "_") in self.names
        )


def read_rule(target: Target) -> StackRule | None:
    """Return what the text of a script says; None if it calls no `stackable` with literals."""
    path = target.name
    if target.kind is TargetKind.MODULE:
        path = os.path.join(*target.name.split(".")) + ".py"
    if target.kind is TargetKind.COMMAND or not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):  # python will say what is wrong
        return None
    is_called = _is_function(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_called(node.func):
            return _rule_of_call(node)
    return None


def _is_function(tree: ast.Module) -> Callable[[ast.expr], bool]:
    """Return a function that decides whether an expression names `cputrain.many.stackable`."""
    names = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "cputrain.many"
        for each in node.names
        if each.name == FUNCTION
    }

    def is_called(expression: ast.expr) -> bool:
        if isinstance(expression, ast.Name):
            return expression.id in names
        return ast.unparse(expression) in (f"cputrain.many.{FUNCTION}", f"many.{FUNCTION}")

    return is_called


def _rule_of_call(call: ast.Call) -> StackRule | None:
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    try:
        names = [ast.literal_eval(each) for each in call.args[1:]]
        at_most = ast.literal_eval(options["at_most"]) if "at_most" in options else AT_MOST
    except ValueError:
        return None
    if not names or not all(isinstance(name, str) for name in names) or type(at_most) is not int:
        return None
    return StackRule(names=frozenset(names), at_most=at_most)


def merged(jobs: Sequence[Job]) -> Job:
    """Return the job that stands for several in one process: the first, with the needs of all."""
    first = jobs[0]
    if len(jobs) == 1:
        return first
    return first.replace(
        title=f"{first.name} and {len(jobs) - 1} more",
        memory_bytes=first.memory_bytes and first.memory_bytes * len(jobs),
        timeout_s=first.timeout_s and first.timeout_s * len(jobs),
    )
