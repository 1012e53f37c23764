"""Static analysis of how a dataset's methods use its attributes.

A list can be replaced by shared samples if workers only index it or take its length. So the source
of the methods that workers call is checked: it must not pass `self` to other code, nor use the
attribute in another way. Methods without source make the analysis fail.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch.utils.data

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALLED_BY_TORCH = ("__getitem__", "__getitems__", "__len__")

_NEVER_CALLED = frozenset(
    ("__init__", "__new__", "__post_init__", "__repr__", "__str__", "__del__", "__reduce__",
     "__reduce_ex__", "__getstate__", "__setstate__", "__init_subclass__", "__add__")
)  # fmt: skip
"""Special methods that workers do not call."""

_WHOLE_STATE = frozenset(("__dict__", "__getstate__", "__reduce__", "__reduce_ex__", "__slots__"))


class UnknownUseError(Exception):
    """A class's use of its attributes cannot be determined; the text says why."""


class AttributeUse:
    """The attributes that a class's methods index, and those that they use in other ways.

    Args:
        kind: The class. Raises UnknownUseError if it cannot be analyzed.
    """

    def __init__(self, kind: type) -> None:
        self._indexed: set[str] = set()
        self._other_uses: set[str] = set()
        pending = [*_CALLED_BY_TORCH]
        for base in kind.__mro__:
            pending += [
                name
                for name, value in vars(base).items()
                if isinstance(value, FunctionType)
                and name.startswith("__")
                and name.endswith("__")
                and name not in _NEVER_CALLED
            ]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                for base in kind.__mro__:
                    if base not in _TRUSTED_BASES and name in vars(base):
                        pending += self._read(base, name, vars(base)[name])

    def is_indexed(self, name: str) -> bool:
        """Return whether a method indexes an attribute or takes its length."""
        return name in self._indexed

    def has_other_use(self, name: str) -> bool:
        """Return whether a method uses an attribute in another way."""
        return name in self._other_uses

    def _read(self, base: type, name: str, value: Any) -> set[str]:
        """Analyze a method, and return the names of all attributes that it uses."""
        where = f"{base.__qualname__}.{name}"
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        functions = [value]
        if isinstance(value, property):
            functions = [value.fget]
        used: set[str] = set()
        for function in functions:
            if type(function) is not FunctionType:
                if callable(value) or hasattr(type(value), "__get__"):
                    raise UnknownUseError(f"{where} is not a plain method")
                return used  # a class attribute that is not callable
            used |= self._read_function(where, function)
        return used

    def _read_function(self, where: str, function: FunctionType) -> set[str]:
        tree = _parsed(where, function)
        code = function.__code__
        self_name = code.co_varnames[0] if code.co_argcount else None
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        used: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == self_name:
                if not _is_local_use(node, parents[node]):
                    raise UnknownUseError(f"{where} passes {self_name} to other code")
            elif isinstance(node, ast.Name) and node.id in ("locals", "eval", "exec"):
                raise UnknownUseError(f"{where} calls {node.id}()")
            elif isinstance(node, ast.Attribute):
                if node.attr in _WHOLE_STATE:
                    raise UnknownUseError(f"{where} uses {node.attr}")
                used.add(node.attr)
                is_indexed = _is_indexed(node, parents[node])
                (self._indexed if is_indexed else self._other_uses).add(node.attr)
        return used


_TRUSTED_BASES = (object, torch.utils.data.Dataset)


def _is_local_use(node: ast.Name, parent: ast.AST) -> bool:
    """Return whether `self` is only used for an attribute, its length, its type or `super`."""
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id in ("len", "type", "super") and node in parent.args
    return isinstance(parent, ast.Attribute)


def _is_indexed(node: ast.Attribute, parent: ast.AST) -> bool:
    """Return whether an attribute is read by an index or passed to `len`."""
    if isinstance(parent, ast.Subscript):
        return parent.value is node and isinstance(parent.ctx, ast.Load)
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "len"
        and parent.args == [node]
    )


def _parsed(where: str, function: FunctionType) -> ast.AST:
    """Return the syntax tree of a function; raise UnknownUseError if its source is not reliable."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise UnknownUseError(f"the source of {where} cannot be read") from None
    (definition,) = tree.body
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise UnknownUseError(f"{where} is not a plain method")
    names = {node.attr for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    if definition.decorator_list:
        # other decorators may replace the function by another one
        allowed = ("property", "staticmethod", "classmethod")
        if not all(getattr(item, "id", "") in allowed for item in definition.decorator_list):
            raise UnknownUseError(f"{where} has a decorator")
    if not set(_attributes_in(function.__code__)) <= names:
        raise UnknownUseError(f"the source of {where} has changed since it was imported")
    return definition


def _attributes_in(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes that bytecode uses, nested functions included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes_in(constant)
