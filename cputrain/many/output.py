"""What a job has printed last: a JSON object, a loss, or an error."""

from __future__ import annotations

import json
import os
import re
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TAIL_BYTES = 65536
"""End of a log file that is read."""

MAX_ERROR = 300
"""Longest error that is shown."""

OURS = "cputrain: "
"""Beginning of the lines that `cputrain launch` prints."""

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
_LOSS = re.compile(rf"\bloss\b\W*?({_NUMBER})(?![\w.])", re.IGNORECASE)
_ANY_NUMBER = re.compile(rf"(?<![\w.])({_NUMBER})(?![\w.])", re.IGNORECASE)
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit|Warning)\b.*|^Killed$|^Segmentation")


def last_lines(path: str) -> list[str]:
    """Return the last lines of a log file, without empty ones and those of cputrain."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # a progress bar writes many lines over one another
    lines = [line.rpartition("\r")[2].strip() or line.strip() for line in text.split("\n")]
    return [line for line in lines if line and not line.startswith(OURS)]


def last_values(lines: list[str]) -> dict[str, Any]:
    """Return the values of the last JSON object; else the last loss, or the last number, as "loss".

    A number counts only in the last line: further up it may be anything.
    """
    for values in _objects(lines):
        return values
    for line in reversed(lines):
        if match := _LOSS.search(line):
            return {"loss": float(match[1])}
    numbers = _ANY_NUMBER.findall(lines[-1]) if lines else []
    return {"loss": float(numbers[-1])} if numbers else {}


def values_of_each(lines: list[str], num_jobs: int) -> list[dict[str, Any]]:
    """Return the values of the last JSON objects, one for each job; empty if there are too few."""
    objects = list(islice(_objects(lines), num_jobs))
    return objects[::-1] if len(objects) == num_jobs else [{}] * num_jobs


def _objects(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the values of each line that is a JSON object, the last one first."""
    for line in reversed(lines):
        if line.startswith("{") and line.endswith("}"):
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                yield {
                    str(name): value
                    for name, value in values.items()
                    if isinstance(value, str | int | float | bool) or value is None
                }


def last_error(lines: list[str]) -> str:
    """Return the last line of a traceback; else the last line."""
    error = next((line for line in reversed(lines) if _ERROR.match(line)), "")
    return (error or (lines[-1] if lines else "it printed nothing"))[:MAX_ERROR]


def last_result(path: str, *, has_failed: bool, stacked: int = 1, place: int = 0) -> dict[str, Any]:
    """Return the fields `result` and `error` of an outcome."""
    lines = last_lines(path)
    values = last_values(lines) if stacked == 1 else values_of_each(lines, stacked)[place]
    return {
        "result": {} if has_failed else values,
        "error": last_error(lines) if has_failed else "",
    }
