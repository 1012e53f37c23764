"""Find which attributes of a model's modules its forward may read, from the classes' bytecode.

A counter, an optimizer or a trainer that a script keeps in its module does not affect a forward: it
may change between calls, and need not be copied. In doubt, for example where code computes the name
of an attribute, attributes count as read.
"""

from __future__ import annotations

import dis
import sys
from functools import cache, cached_property, partial, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from cputrain.split.proof.model_state import HOOK_TABLES, modules_of, reachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

COMPUTED = frozenset({
    "__dict__", "__getattribute__", "attrgetter", "eval", "exec", "locals", "vars", "__slots__",
    "getmembers",
})  # fmt: skip
"""Names in code that may read attributes of any name."""

BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
"""Functions that take an attribute's name; if it is not a constant, it may be any name."""

NEUTRAL = frozenset(
    {"LOAD_ATTR", "PUSH_NULL", "PRECALL", "CACHE", "NOP", "KW_NAMES", "EXTENDED_ARG"}
)
"""Instructions that push no argument of such a call onto the stack."""

ELSEWHERE = frozenset({"torch", "numpy", "cputrain", *sys.stdlib_module_names})
"""Packages whose functions do not read attributes of user code by name."""

UNNAMED = frozenset({
    "__getattr__", "__getattribute__", "__call__", "__getitem__", "__iter__", "__len__",
    "__contains__", "__bool__", "__enter__", "__exit__", "__eq__", "__hash__",
})  # fmt: skip
"""Methods that Python calls although their names are not in the code."""

MAX_FUNCTIONS = 3_000
"""Most functions to analyse; if there are more, all attributes count as read."""

OF_MODULES = frozenset(dir(nn.Module)) | frozenset(nn.Module().__dict__)
"""Attributes of `nn.Module`, which always count as read."""


class ReadNames:
    """Names of the attributes that the forwards of a model's classes may read."""

    def __init__(self, model: nn.Module) -> None:
        self.kinds = kinds_of(model)
        self._names: set[str] = set()
        self._all_of: set[type] = set()
        """Classes all of whose attributes count as read."""
        self._is_read: dict[type, dict[str, bool]] = {}
        for kind, forward in self.kinds:
            self._add(kind, _names_of(kind, forward))
        seen: set[type] = set()
        while new_types := {type(value) for _, value in reachable(model, self)} - seen:
            seen |= new_types
            for kind in new_types:
                if not issubclass(kind, nn.Module) and not _is_elsewhere(kind):
                    self._add(kind, _names_of(kind, None))  # type: ignore[arg-type]

    def _add(self, kind: type, names: frozenset[str] | None) -> None:
        """Add the names of a class; with None, all its attributes count as read."""
        if names is None:
            self._all_of.add(kind)
        else:
            self._names |= names

    def has(self, kind: type, name: str) -> bool:
        """Return whether a forward may read this attribute of modules of a class."""
        return name in self._names or name in OF_MODULES or kind in self._all_of

    def readable_values(self, module: nn.Module) -> Iterator[Any]:
        """Iterate over the values of a module's readable attributes, without hook tables."""
        kind = type(module)
        is_read = self._is_read.setdefault(kind, dict.fromkeys(HOOK_TABLES, False))
        for name, value in module.__dict__.items():
            if name not in is_read:
                is_read[name] = self.has(kind, name)
            if is_read[name]:
                yield value


def kinds_of(model: nn.Module) -> tuple[tuple[type, Any], ...]:
    """Return the distinct classes of a model's modules, each with its forward."""
    classes: dict[tuple[type, Any], None] = {}
    for module in modules_of(model):
        forward = module.__dict__.get("forward")
        kind = type(module)
        if forward is None:
            # (getattr on classes of torch.jit does not return their forward)
            forward = next(
                vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)
            )
        elif isinstance(forward, MethodType):
            forward = forward.__func__
        classes[kind, forward if isinstance(forward, FunctionType) else None] = None
    return tuple(classes)


@cache
def _names_of(kind: Hashable, forward: Hashable) -> frozenset[str] | None:
    """Return the names in all code that a forward may call; None where any name may be read.

    If the class is not a module, each of its methods counts as called.
    """
    assert isinstance(kind, type)
    if not issubclass(kind, nn.Module):
        return _CodeAnalysis(
            kind, [attribute for base in kind.__mro__ for attribute in vars(base).values()]
        ).names
    if kind.__module__.partition(".")[0] == "torch" or not isinstance(forward, FunctionType):
        return None
    return _CodeAnalysis(kind, [forward]).names


class _CodeAnalysis:
    """Analysis of the functions that a forward may call, by the names in their bytecode."""

    def __init__(self, kind: type, functions: Iterable[Any]) -> None:
        self._bases = [cls for cls in kind.__mro__ if cls not in (nn.Module, object)]
        self._seen: set[Any] = set()
        self._queue: list[FunctionType] = []
        self._names: set[str] = set()
        self._has_computed_names = False
        for function in functions:
            self._enqueue_all(function)
        for base in self._bases:
            for name in base.__dict__.keys() & UNNAMED:
                self._enqueue(base.__dict__[name])
        while self._queue and not self._has_computed_names:
            self._analyse(self._queue.pop())

    @cached_property
    def names(self) -> frozenset[str] | None:
        """Names in the code; None if code may compute the name of an attribute."""
        return None if self._has_computed_names else frozenset(self._names)

    def _analyse(self, function: FunctionType) -> None:
        """Collect the names in a function, and enqueue the functions that they refer to."""
        names: set[str] = set()
        for code in _codes(function.__code__):
            self._has_computed_names |= _computes_names(code)
            names.update(code.co_names)
            names.update(const for const in code.co_consts if isinstance(const, str))
        self._names |= names
        for name in names:
            for base in self._bases:
                self._enqueue(base.__dict__.get(name))
        for name in names & function.__globals__.keys():
            self._enqueue_global(function.__globals__[name], names)
        for cell in function.__closure__ or ():
            try:
                self._enqueue_global(cell.cell_contents, names)
            except ValueError:  # an empty cell
                continue

    def _enqueue_global(self, value: Any, names: set[str]) -> None:
        """Enqueue a function, the methods of a class or object, or functions of a module."""
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in ELSEWHERE:
                for name in names & value.__dict__.keys():
                    self._enqueue_global(value.__dict__[name], set())
            return
        if isinstance(value, FunctionType | MethodType | partial):
            self._enqueue(value)
            return
        kind = value if isinstance(value, type) else type(value)
        if _is_elsewhere(kind) or issubclass(kind, nn.Module):
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        for base in kind.__mro__:
            if not _is_elsewhere(base):
                for member in base.__dict__.values():
                    self._enqueue_all(member)
        for member in list(getattr(value, "__dict__", {}).values()) if kind is not value else ():
            self._enqueue_all(member)

    def _enqueue_all(self, value: Any) -> None:
        """Enqueue a function, or the functions in a dict."""
        if isinstance(value, dict):
            for item in list(value.values()):
                self._enqueue(item)
        else:
            self._enqueue(value)

    def _enqueue(self, value: Any) -> None:
        """Enqueue the functions of a callable for analysis, each once."""
        for function in _functions(value):
            if function.__code__ in self._seen:
                continue
            package = (function.__module__ or "").partition(".")[0]
            if package in ELSEWHERE and not self._is_method(function):
                continue
            self._seen.add(function.__code__)
            self._queue.append(function)
            self._has_computed_names |= len(self._seen) > MAX_FUNCTIONS

    def _is_method(self, function: FunctionType) -> bool:
        """Return whether a function is a method of the analysed class."""
        name = function.__name__
        return any(function is base.__dict__.get(name) for base in self._bases)


def _is_elsewhere(kind: type) -> bool:
    """Return whether a class belongs to a package that is not analysed."""
    return kind.__module__.partition(".")[0] in ELSEWHERE


def _functions(value: Any) -> Iterator[FunctionType]:
    """Iterate over the functions behind a method, property, partial or decorated function."""
    if isinstance(value, FunctionType):
        yield value
        yield from _functions(value.__dict__.get("__wrapped__"))
    elif isinstance(value, MethodType | staticmethod | classmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, partial | partialmethod):
        yield from _functions(value.func)
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset):
            yield from _functions(accessor)
    elif isinstance(value, cached_property):
        yield from _functions(value.func)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over a code object and all code objects nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _computes_names(code: CodeType) -> bool:
    """Return whether code may read attributes whose names it does not contain."""
    if not COMPUTED.isdisjoint(code.co_names):
        return True
    if BY_NAME.isdisjoint(code.co_names):
        return False
    are_constant: list[bool] | None = None
    """For each pushed argument of a `BY_NAME` call, whether it is a constant string."""
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD") and instruction.argval in BY_NAME:
            are_constant = []
        elif are_constant is None or instruction.opname in NEUTRAL:
            continue
        elif instruction.opname.startswith("LOAD_FAST_") and instruction.opname.count("FAST") == 2:
            are_constant += [False, False]
        elif instruction.opname.startswith("LOAD"):
            are_constant.append(
                instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
            )
        elif (
            instruction.opname != "CALL"
            or instruction.arg != len(are_constant)
            or not all(are_constant[1:2])
        ):
            return True  # the name is computed, or cannot be determined
        else:
            are_constant = None
    return False
