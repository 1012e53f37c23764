"""Suggestions for words that users type: the known word that one was most likely meant to be."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SIMILAR = 0.7
"""Least similarity of two words: twice the number of common letters by that of all letters."""

LEAST_PREFIX = 3
"""Least number of letters of a word that is taken for the beginning of another one."""

FLOAT16 = "float16 is not offered on CPUs; bf16 is, and changes results, too."
"""What is said before the suggestion of bf16 for float16."""

VALUES = {
    "true": "on", "yes": "on", "1": "on", "enable": "on", "enabled": "on",
    "false": "off", "no": "off", "0": "off", "disable": "off", "disabled": "off", "none": "off",
    "bfloat16": "bf16", "torch.bfloat16": "bf16", "mixed": "bf16", "amp": "bf16",
    "float16": "bf16", "fp16": "bf16", "half": "bf16",
    "fp32": "float32", "f32": "float32", "float": "float32", "torch.float32": "float32",
    "full": "float32",
}  # fmt: skip
"""Values that other tools use, and ours."""


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to a word, "" if none is.

    Case, leading dashes, and dashes for underscores make no difference.
    """
    names = {_normal(name): name for name in known}
    wanted = _normal(word)
    if wanted in names:
        return names[wanted]
    longer = [name for name in names if len(wanted) >= LEAST_PREFIX and name.startswith(wanted)]
    if longer:
        return names[min(longer, key=len)]
    from difflib import get_close_matches

    matches = get_close_matches(wanted, names, n=1, cutoff=SIMILAR)
    return names[matches[0]] if matches else ""


def closest_value(value: str, choices: Iterable[str]) -> str:
    """Return the choice that a value was most likely meant to be, "" if there is none."""
    choices = tuple(choices)
    other_name = VALUES.get(value.lower(), "")
    return other_name if other_name in choices else closest(value, choices)


def value_hint(value: str, choices: Iterable[str]) -> str:
    """Return what to do about a value that is none of the choices; "" if nothing is known."""
    hint = did_you_mean(closest_value(value, choices))
    return f"{FLOAT16} {hint}" if hint and value.lower() in ("float16", "fp16", "half") else hint


def did_you_mean(suggestion: str) -> str:
    """Return a question that names a suggestion; "" for an empty one."""
    return f"Did you mean {suggestion}?" if suggestion else ""


def _normal(word: str) -> str:
    return word.lower().lstrip("-").replace("_", "-")
