"""Reading a diagnosis that was kept. A file may come from anywhere: each value is checked."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from math import inf
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from cputrain.diagnose.diagnosis import KIND, SCHEMA_VERSION, Diagnosis
from cputrain.errors import UsageError
from cputrain.record import Record

ADVICE = "Make one with: cputrain diagnose --json SCRIPT > run.json"

LARGEST = 1 << 28
"""Bytes of a file that is read at all."""


def read_diagnosis(path: str) -> Diagnosis:
    """The one in a file; an error that says what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST)
        document = json.loads(text)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(path, "must be a file that can be read", found=why, do=ADVICE) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(path, "must be a JSON document", found=str(error), do=ADVICE) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(
            path, "must be what cputrain diagnose --json printed", found="another document",
            do=ADVICE,
        )  # fmt: skip
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            path, f"must have schema_version {SCHEMA_VERSION}",
            found=repr(document.get("schema_version"))[:80], do=ADVICE,
        )  # fmt: skip
    try:
        return Diagnosis(**_fields(Diagnosis, document, "the document"))
    except ValueError as error:
        raise UsageError(path, "must hold a whole diagnosis", found=str(error), do=ADVICE) from None


def _fields(kind: type[Record], document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError(f"{where} is {_shown(document)}")
    hints = get_type_hints(
        kind, vars(sys.modules[kind.__module__]), {"Any": Any, "ClassVar": ClassVar}
    )
    values = {}
    for name in kind.record_fields:
        if name in document:
            inside = f"{where}.{name}" if where != "the document" else name
            values[name] = _value(hints[name], document[name], inside)
        elif not hasattr(kind, name):
            raise ValueError(f"{where} has no {name}")
    return values


def _value(kind: Any, found: Any, where: str) -> Any:
    """What is found there as a value of that type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return found
    if origin is UnionType:  # something, or None
        return None if found is None else _value(inner[0], found, where)
    if origin is tuple and isinstance(found, list):
        kinds = inner[:1] * len(found) if inner[-1] is ... else inner
        if len(kinds) == len(found):
            return tuple(
                _value(each, one, f"{where}[{at}]")
                for at, (each, one) in enumerate(zip(kinds, found, strict=True))
            )
    elif origin is dict and isinstance(found, dict):
        return {key: _value(inner[1], one, f"{where}.{key}") for key, one in found.items()}
    elif origin is None and issubclass(kind, Record):
        return kind(**_fields(kind, found, where))
    elif origin is None and issubclass(kind, StrEnum):
        if found in list(kind):
            return kind(found)
    elif kind is float and type(found) in {int, float}:
        if abs(found) < inf:  # what is no number is not either
            return float(found)
    elif origin is None and type(found) is kind:
        return found
    raise ValueError(f"{where} is {_shown(found)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
