"""Read `Record` classes from JSON documents, with the type of every value checked."""

from __future__ import annotations

import sys
from enum import StrEnum
from math import inf
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from cputrain.record import Record

AnyRecord = TypeVar("AnyRecord", bound=Record)


def record_from(kind: type[AnyRecord], document: Any, where: str = "") -> AnyRecord:
    """Return the record of a class that a document holds.

    Args:
        kind: Class of the record.
        document: JSON document; keys that are not fields are ignored.
        where: Path of the document within an outer one, for messages.

    Raises:
        ValueError: A value is missing or does not have its field's type; the message has its path.
    """
    if not isinstance(document, dict):
        raise ValueError(f"{where or 'the document'} is {_shown(document)}")
    hints = get_type_hints(
        kind, vars(sys.modules[kind.__module__]), {"Any": Any, "ClassVar": ClassVar}
    )
    values = {}
    for name in kind.record_fields:
        if name in document:
            path = f"{where}.{name}" if where else name
            values[name] = _value(hints[name], document[name], path)
        elif not hasattr(kind, name):
            raise ValueError(f"{where or 'the document'} has no {name}")
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Return a value of a document converted to a type.

    Raises:
        ValueError: The value does not have the type.
    """
    origin, type_args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:  # of a type and None
        return None if value is None else _value(type_args[0], value, where)
    if origin is tuple and isinstance(value, list):
        kinds = type_args[:1] * len(value) if type_args[-1] is ... else type_args
        if len(kinds) == len(value):
            return tuple(
                _value(item_kind, item, f"{where}[{index}]")
                for index, (item_kind, item) in enumerate(zip(kinds, value, strict=True))
            )
    elif origin is dict and isinstance(value, dict):
        return {key: _value(type_args[1], item, f"{where}.{key}") for key, item in value.items()}
    elif origin is None and issubclass(kind, Record):
        return record_from(kind, value, where)
    elif origin is None and issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
    elif kind is float and type(value) in {int, float}:
        if abs(value) < inf:  # NaN and infinity are rejected
            return float(value)
    elif origin is None and type(value) is kind:
        return value
    raise ValueError(f"{where} is {_shown(value)}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:79] + "…"
