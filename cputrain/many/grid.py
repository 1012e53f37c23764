"""Grids of parameters: their values, their product, and templates that the values go into."""

from __future__ import annotations

import re
from itertools import product

from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_JOBS = 1_000_000
"""Largest number of jobs of a grid: more are a mistake in a range."""

PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""A parameter in a template: {lr}."""

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")


def read_axis(text: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Parse one parameter and its values: "lr=1e-3,1e-2", "seed=0..7" or "width=64..512..64".

    Both ends of a range belong to it.

    Raises:
        UsageError: There is no name, or no value.
    """
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-")
    if not equals or not name or not values.strip():
        raise UsageError(
            where,
            "must be a name and its values",
            found=repr(text),
            do=f"For example: {where} lr=1e-3,1e-2 or {where} seed=0..7.",
        )
    return name, tuple(
        value for word in values.split(",") for value in _values_of(word.strip(), where)
    )


def _values_of(word: str, where: str) -> Iterator[str]:
    """Yield the values of a word: itself, or the numbers of a range."""
    match = _RANGE.fullmatch(word)
    if match is None:
        yield word
        return
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if last < first or step < 1 or (last - first) // step >= MAX_JOBS:
        raise UsageError(
            where,
            f"must have ranges that go up, with at most {MAX_JOBS:,} values",
            found=repr(word),
            do="For example: 0..7, or 64..512..64 for every 64th.",
        )
    yield from map(str, range(first, last + 1, step))


def combinations(axes: Mapping[str, Sequence[str]], where: str) -> Iterator[dict[str, str]]:
    """Yield every combination of values; the last parameter varies fastest.

    Raises:
        UsageError: There are too many.
    """
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MAX_JOBS:
        raise UsageError(
            where, f"must make at most {MAX_JOBS:,} jobs", found=f"{count:,}",
            do="Leave values out.",
        )  # fmt: skip
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def filled(template: str, parameters: Mapping[str, str], where: str) -> str:
    """Return a template with {name} replaced by the parameters' values.

    Braces around anything else, as in JSON, stay as they are.

    Raises:
        UsageError: A placeholder names no parameter, although others in the template do.
    """
    names = PLACEHOLDER.findall(template)
    unknown = [name for name in names if name not in parameters]
    if unknown and len(unknown) < len(names):
        raise UsageError(
            where,
            "must name parameters in its placeholders",
            found=f"{{{unknown[0]}}}",
            do=f"The parameters are {', '.join(parameters)}.",
        )
    return PLACEHOLDER.sub(lambda match: parameters.get(match[1], match[0]), template)


def names_in(templates: Sequence[str]) -> frozenset[str]:
    """Return the names of all placeholders."""
    return frozenset(name for text in templates for name in PLACEHOLDER.findall(text))


def arguments_for(
    arguments: Sequence[str],
    template: Sequence[str],
    variables: Mapping[str, str],
    parameters: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a job's arguments and variables.

    A parameter that no placeholder names becomes an argument: --lr 1e-3.

    Args:
        arguments: The script's arguments, which may have placeholders.
        template: Words to append, which have placeholders.
        variables: Environment variables, whose values may have placeholders.
        parameters: The job's values.
    """
    words = [filled(word, parameters, "the script's arguments") for word in arguments]
    words += [filled(word, parameters, "--template") for word in template]
    named = names_in([*arguments, *template, *variables.values()])
    for name, value in parameters.items():
        if name not in named:
            # one word: a value such as -1 would be taken for an option
            words += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return tuple(words), {
        name: filled(value, parameters, f"the variable {name}") for name, value in variables.items()
    }
