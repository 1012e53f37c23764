"""What the methods of a dataset that run in a worker do with an attribute, by their source.

A list may be replaced by something that only takes samples if nothing else is done with it. So the
methods are read: the object must not be passed on, and the attribute only be indexed, or its length
taken. What cannot be read is not trusted.
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
"""Special methods that no worker calls while it makes samples."""

_WHOLE_STATE = frozenset(("__dict__", "__getstate__", "__reduce__", "__reduce_ex__", "__slots__"))


class UnknownUseError(Exception):
    """More may be done with the attributes of an object than to index them; the text says why."""


class AttributeUse:
    """Which attributes the methods of one class index, and which they use in other ways."""

    def __init__(self, kind: type) -> None:
        self._indexed: set[str] = set()
        self._others: set[str] = set()
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
                    if base not in _BASES and name in vars(base):
                        pending += self._read(base, name, vars(base)[name])

    def is_indexed(self, name: str) -> bool:
        """Return whether an attribute is indexed, or its length taken."""
        return name in self._indexed

    def is_used_otherwise(self, name: str) -> bool:
        """Return whether anything else is done with an attribute."""
        return name in self._others

    def _read(self, base: type, name: str, value: Any) -> set[str]:
        """Read one method, and return the names of all attributes that it uses."""
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
                    raise UnknownUseError(f"{where} is no plain method")
                return used  # a constant of the class
            used |= self._read_function(where, function)
        return used

    def _read_function(self, where: str, function: FunctionType) -> set[str]:
        tree = _parsed(where, function)
        code = function.__code__
        myself = code.co_varnames[0] if code.co_argcount else None
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        used: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == myself:
                if not _keeps_to_itself(node, parents[node]):
                    raise UnknownUseError(f"{where} passes {myself} on")
            elif isinstance(node, ast.Name) and node.id in ("locals", "eval", "exec"):
                raise UnknownUseError(f"{where} calls {node.id}()")
            elif isinstance(node, ast.Attribute):
                if node.attr in _WHOLE_STATE:
                    raise UnknownUseError(f"{where} uses {node.attr}")
                used.add(node.attr)
                is_indexed = _is_indexed(node, parents[node])
                (self._indexed if is_indexed else self._others).add(node.attr)
        return used


_BASES = (object, torch.utils.data.Dataset)


def _keeps_to_itself(node: ast.Name, parent: ast.AST) -> bool:
    """Return whether the object is asked for an attribute, its length or its type."""
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id in ("len", "type", "super") and node in parent.args
    return isinstance(parent, ast.Attribute)


def _is_indexed(node: ast.Attribute, parent: ast.AST) -> bool:
    if isinstance(parent, ast.Subscript):
        return parent.value is node and isinstance(parent.ctx, ast.Load)
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "len"
        and parent.args == [node]
    )


def _parsed(where: str, function: FunctionType) -> ast.AST:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise UnknownUseError(f"the source of {where} cannot be read") from None
    (definition,) = tree.body
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise UnknownUseError(f"{where} is no plain method")
    names = {node.attr for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    if definition.decorator_list:
        # what a decorator makes of a function is another function, but for these
        allowed = ("property", "staticmethod", "classmethod")
        if not all(getattr(item, "id", "") in allowed for item in definition.decorator_list):
            raise UnknownUseError(f"{where} has a decorator")
    if not set(_attributes_in(function.__code__)) <= names:
        raise UnknownUseError(f"the source of {where} has changed since it was imported")
    return definition


def _attributes_in(code: CodeType) -> Iterator[str]:
    """Yield the attributes that bytecode loads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes_in(constant)
