"""Counts in sentences: "1 step", "2 steps"."""

from __future__ import annotations


def counted(number: int, word: str, plural: str = "") -> str:
    """Return a number with its word, in the singular for 1.

    Args:
        number: How many.
        word: The word in the singular.
        plural: The word in the plural; `word` with an s by default.
    """
    return f"{number} {word if number == 1 else plural or f'{word}s'}"
