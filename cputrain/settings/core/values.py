"""Checks of values: of those that users type, and of those that saved plans hold."""

from __future__ import annotations

from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.settings.core.decision import UserValue

MOST = 1 << 16
"""Upper bound of numbers of CPUs, threads and NUMA nodes, above those of any machine."""


def shortened(value: str) -> str:
    """Return a typed value quoted, and cut to a length that fits a message."""
    return repr(value if len(value) <= 60 else f"{value[:57]}...")


def parse_count(user: UserValue, rule: str, *, least: int = 1, most: int, advice: str) -> int:
    """Parse a whole number from `least` to `most` that the user typed.

    Args:
        user: The user's value.
        rule: What it must be, for the message.
        least: Smallest number that is allowed.
        most: Largest number that is allowed.
        advice: What to do otherwise.

    Raises:
        UsageError: The value is not such a number.
    """
    text = user.value
    if not (text.isascii() and text.isdigit() and len(text) < 7 and least <= int(text) <= most):
        raise UsageError(user.where, rule, found=shortened(text), do=advice)
    return int(text)


def count(document: Any) -> int:
    """Return a positive number of a saved plan. Raises ValueError for any other value."""
    if type(document) is not int or not 1 <= document <= MOST:
        raise ValueError(document)
    return document


def numbers(document: Any) -> tuple[int, ...]:
    """Return the CPUs or nodes of a saved plan. Raises ValueError for any other value."""
    if not isinstance(document, (list, tuple)) or not 1 <= len(document) <= MOST:
        raise ValueError(document)
    if not all(type(number) is int and 0 <= number < MOST for number in document):
        raise ValueError(document)
    return tuple(document)


def fields(document: Any, *names: str) -> tuple[Any, ...]:
    """Return the fields of an object that has these and no others. Raises ValueError."""
    if not isinstance(document, dict) or document.keys() != set(names):
        raise ValueError(document)
    return tuple(document[name] for name in names)


def one_of(document: Any, *choices: str) -> str:
    """Return a string that is one of the choices. Raises ValueError for any other value."""
    if not isinstance(document, str) or document not in choices:
        raise ValueError(document)
    return document
