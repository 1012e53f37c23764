"""Code of a script: the names that a function reads, its methods, and what it does to the world."""

from __future__ import annotations

import sys
from dis import get_instructions
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

LIBRARIES = frozenset({"torch", "numpy", "cputrain", *sys.stdlib_module_names})
"""Packages whose functions read no values of a script, and whose effects have known names."""

EFFECTS = frozenset({
    "print", "open", "input", "exec", "eval", "next", "write", "writelines", "flush", "debug",
    "info", "warning", "error", "exception", "critical", "sleep", "time", "time_ns",
    "perf_counter", "perf_counter_ns", "monotonic", "now", "urandom", "put", "send", "add_scalar",
    "add_histogram", "register_hook", "retain_grad", "register_buffer", "register_parameter",
    "setattr", "delattr", "update", "setdefault", "popitem", "record_function", "pprint", "warn",
})  # fmt: skip
"""CodeNames of functions that do more than return a value, or return another one each time."""

STORES = {
    "STORE_ATTR": "sets an attribute", "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global variable", "DELETE_GLOBAL": "deletes a global variable",
    "YIELD_VALUE": "is a generator",
}  # fmt: skip

DYNAMIC = frozenset({
    "getattr", "vars", "__dict__", "eval", "exec", "globals", "locals", "attrgetter",
    "methodcaller", "__getattribute__",
})  # fmt: skip
"""CodeNames of functions by which code reads attributes that it does not name."""

CONSTRUCTORS = ("__new__", "__init__", "__post_init__", "forward", "backward", "setup_context")
"""Methods that are called where a class is, or where a function of autograd is applied."""

NOT_CALLED = frozenset({
    *CONSTRUCTORS[:3], "__repr__", "__str__", "__del__", "__reduce__", "__reduce_ex__",
    "__getstate__", "__setstate__", "__init_subclass__", "__class_getitem__", "__set_name__",
    "__copy__", "__deepcopy__", "__setattr__", "__delattr__", "__sizeof__", "__dir__",
})  # fmt: skip
"""Special methods that no expression calls of which the object is a part."""


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


def methods(owner: type, names: frozenset[str], *, is_called: bool) -> Iterator[FunctionType]:
    """Yield the methods of a class that may be called; `super()` may call any of a name.

    Args:
        owner: The class.
        names: CodeNames in the code that may call them.
        is_called: Whether that code may call the class itself.
    """
    every = not names.isdisjoint(DYNAMIC)
    constructors = CONSTRUCTORS if is_called and not issubclass(owner, nn.Module) else ()
    for base in bases(owner):
        for name, member in vars(base).items():
            is_special = name.startswith("__") and name.endswith("__")
            if (
                name in names
                or name in constructors
                or name == "forward"
                or (name not in NOT_CALLED if is_special else every)
            ):
                function = member.fget if isinstance(member, property) else member
                function = getattr(function, "__func__", function)
                if isinstance(function, FunctionType):
                    yield function


def effect_of(function: FunctionType) -> str:
    """Return what a function does beside returning a value; "" if nothing."""
    is_constructor = function.__name__ in CONSTRUCTORS
    receiver = function.__code__.co_varnames[:1] if is_constructor else ()
    return _effect_of(function.__code__, receiver)


def _effect_of(code: CodeType, receiver: tuple[str, ...] = ()) -> str:
    """Return what code does beside returning a value.

    Args:
        code: The code.
        receiver: The variable whose attributes it may set: an object that it makes.
    """
    for name in code.co_names:
        if name in EFFECTS:
            return f"calls {name}"
    before = None
    for instruction in get_instructions(code):
        if instruction.opname in STORES:
            is_its_own = before is not None and before.argval in receiver
            if instruction.opname != "STORE_ATTR" or not is_its_own:
                return STORES[instruction.opname]
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return "sets a variable of an enclosing function"
        before = instruction
    inner = (constant for constant in code.co_consts if hasattr(constant, "co_names"))
    is_generator = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
    return next(
        (
            effect
            for each in inner
            if each.co_name not in is_generator and (effect := _effect_of(each))
        ),
        "",
    )
