"""Code of a script: the names that a function reads, and the methods that it may call."""

from __future__ import annotations

import sys
from dis import get_instructions
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from cputrain.runtime.effects import CONSTRUCTORS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

LIBRARIES = frozenset({"torch", "numpy", "cputrain", *sys.stdlib_module_names})
"""Packages whose functions read no values of a script."""

DYNAMIC = frozenset({
    "getattr", "vars", "__dict__", "eval", "exec", "globals", "locals", "attrgetter",
    "methodcaller", "__getattribute__",
})  # fmt: skip
"""Names of functions by which code reads attributes that it does not name."""

OPERATORS = frozenset({
    "__call__", "__getitem__", "__enter__", "__exit__", "__getattr__", "__getattribute__",
    "__missing__", "__neg__", "__abs__", "__invert__",
    *(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
        for side in ("", "r", "i")
    ),
})  # fmt: skip
"""Methods that code may call without their names, of any object that it has."""


class CodeNames(NamedTuple):
    """The names that a function reads."""

    of_globals: frozenset[str]
    of_attributes: frozenset[str]


def is_of_library(value: Any) -> bool:
    """Return whether a function, class or module is that of a library."""
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return isinstance(name, str) and name.partition(".")[0] in LIBRARIES - {"__main__"}


@cache
def names_in(code: CodeType) -> CodeNames:
    """Return the names in a function, and in functions within it."""
    read = {
        each.argval
        for each in get_instructions(code)
        if each.opname in {"LOAD_GLOBAL", "LOAD_NAME"}
    }
    attributes = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            inner = names_in(constant)
            read |= inner.of_globals
            attributes |= inner.of_attributes
    return CodeNames(frozenset(read), frozenset(attributes))


def bases(owner: type) -> list[type]:
    """Return a class and those that it inherits from, as far as they are of the script."""
    return [each for each in owner.__mro__ if not is_of_library(each)]


def is_of_script_alone(owner: type) -> bool:
    """Return whether all code of a class is the script's, but for that of nn.Module."""
    return all(each in {nn.Module, object} or not is_of_library(each) for each in owner.__mro__)


def methods(owner: type, names: frozenset[str]) -> Iterator[FunctionType]:
    """Yield the methods of a class that code with these names may call.

    `super()` may call any of a name.
    """
    named = names - CONSTRUCTORS | OPERATORS | {"forward"}
    for base in bases(owner):
        for name in named & vars(base).keys():
            member = vars(base)[name]
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            if isinstance(function, FunctionType):
                yield function
