"""Have optimizers not load torch._dynamo, which takes as long as loading torch.

Methods of optimizers load it at their first call: to be exempt from compilation, and for graph
breaks. Most scripts compile nothing. So until torch._dynamo is loaded for another reason, these
methods run without: decorated ones as they are, and `step` from its own source less the lines that
need torch._dynamo. Then everything is as torch has it.
"""

from __future__ import annotations

import ast
import linecache
import sys
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType, ModuleType
    from typing import Any

EXEMPT = "__dynamo_disable"
"""Attribute in which torch's decorator keeps the exempt function, once it has made it."""

NEEDLESS = ("import torch._dynamo", "torch._dynamo.graph_break()")
"""Statements around an optimizer's step that matter to a compiler alone."""

MAX_LINES = 80
"""Lines of the function with these statements, at most."""

_exempt: list[Callable[..., Any]] = []
"""Functions that stand for their exempt ones until torch._dynamo is loaded."""

_steps: list[tuple[FunctionType, CodeType, CodeType]] = []
"""Functions without the needless statements, their code, and that of torch."""


def defer_dynamo(torch: ModuleType) -> None:
    """Let optimizers run without torch._dynamo while it is not loaded."""
    if "torch._dynamo" in sys.modules:
        return
    optimizer = torch.optim.Optimizer
    decorated_code = torch._disable_dynamo(lambda: None).__code__
    for method in vars(optimizer).values():
        function = getattr(method, "__wrapped__", None)
        is_decorated = getattr(method, "__code__", None) is decorated_code
        if is_decorated and function is not None and not hasattr(function, EXEMPT):
            setattr(function, EXEMPT, function)
            _exempt.append(function)
    decorator = getattr(sys.modules[optimizer.__module__], "_use_grad_for_differentiable", None)
    if decorator is None:
        return
    original: CodeType = decorator(lambda: None).__code__
    replacement = _without_needless(decorator.__code__, original)
    if replacement is None:
        return
    for kind in _subclasses(optimizer):
        step = vars(kind).get("step")
        if getattr(step, "__code__", None) is original:
            step.__code__ = replacement
            _steps.append((step, replacement, original))


def undefer_dynamo() -> None:
    """Have optimizers run as torch has them: torch._dynamo is loaded."""
    while _exempt:
        function = _exempt.pop()
        if vars(function).get(EXEMPT) is function:
            delattr(function, EXEMPT)
    while _steps:
        step, replacement, original = _steps.pop()
        if step.__code__ is replacement:
            step.__code__ = original


def _subclasses(kind: Any) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _without_needless(outer: CodeType, inner: CodeType) -> CodeType | None:
    """Return the code of a decorator's inner function without the needless statements.

    None if its source is not there, or has none of them. Names, files and line numbers stay.
    """
    first = outer.co_firstlineno
    lines = linecache.getlines(outer.co_filename)[first - 1 : first - 1 + MAX_LINES]
    end = next((number for number, line in enumerate(lines[1:], 1) if line[:1].strip()), len(lines))
    kept = []
    for line in lines[:end]:
        statement = line.strip()
        is_needless = statement in NEEDLESS
        kept.append(line.replace(statement, "pass") if is_needless else line)
    source = "".join(kept)
    if source.count("pass") < len(NEEDLESS) or "torch._dynamo" in source:
        return None
    try:
        # annotations are not evaluated, as in torch's file
        tree = ast.parse("\n" * (first - 1) + source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
    code = compile(tree, outer.co_filename, "exec", dont_inherit=True)
    return _code_named(code, inner)


def _code_named(code: CodeType, wanted: CodeType) -> CodeType | None:
    """Return the nested code with the name and variables of another; None if none has."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_wanted = all(
                getattr(constant, name) == getattr(wanted, name)
                for name in ("co_name", "co_freevars", "co_flags", "co_argcount")
            )
            nested = constant if is_wanted else _code_named(constant, wanted)
            if nested is not None:
                return nested.replace(
                    co_filename=wanted.co_filename,
                    co_firstlineno=wanted.co_firstlineno,
                    co_qualname=wanted.co_qualname,
                )
    return None
