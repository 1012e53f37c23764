"""Read jobs from files: TOML with defaults and grids, or CSV with a column for each parameter."""

from __future__ import annotations

import csv
import os

from cputrain.errors import UsageError
from cputrain.many.grid import arguments_for, combinations, read_axis
from cputrain.many.job import Job
from cputrain.quantities import parse_duration, parse_size
from cputrain.record import Record
from cputrain.suggestions import closest, did_you_mean
from cputrain.target import Target, TargetKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

JOB_KEYS = (
    "script", "module", "command", "arguments", "variables", "parameters", "grid", "name",
    "retries", "timeout", "cores", "memory",
)  # fmt: skip
"""Keys of a job in TOML; those at the top hold for all jobs."""


class JobDefaults(Record):
    """What all jobs of a queue have in common."""

    target: Target | None = None
    """Script, module or command with its arguments, which may have placeholders."""

    template: tuple[str, ...] = ()
    """Words to append to the arguments, with placeholders."""

    variables: dict[str, str] = {}
    """Environment variables, whose values may have placeholders."""

    axes: dict[str, tuple[str, ...]] = {}
    """Values of each parameter; a job is made of every combination."""

    retries: int = 0
    """How often a job is started again after a failure."""

    timeout_s: float | None = None
    """Seconds after which a job is stopped."""

    cores: int | None = None
    """Cores of a job; None for as many as are found to be best."""

    memory_bytes: int | None = None
    """Memory of a job; None if it is measured."""

    title: str = ""
    """Name of a job; empty for one made of its parameters."""


def jobs_from_rows(
    defaults: JobDefaults, rows: Iterable[Mapping[str, str]], where: str
) -> Iterator[Job]:
    """Yield the jobs of all rows of parameters, combined with the grid.

    Args:
        defaults: The command, the grid, and so on.
        rows: Parameters of each job; a single empty row for those of the grid alone.
        where: Name of the place of the rows, for messages.

    Raises:
        UsageError: There is no command, or a template names an unknown parameter.
    """
    if defaults.target is None:
        raise UsageError(
            "the script", "is missing", do="Usage: cputrain many --grid lr=1e-3,1e-2 train.py"
        )
    for row in rows:
        for values in combinations(defaults.axes, where):
            parameters = {**row, **values}
            arguments, variables = arguments_for(
                defaults.target.arguments, defaults.template, defaults.variables, parameters
            )
            yield Job(
                target=defaults.target.replace(arguments=arguments),
                parameters=parameters,
                variables=variables,
                title=defaults.title,
                retries=defaults.retries,
                timeout_s=defaults.timeout_s,
                cores=defaults.cores,
                memory_bytes=defaults.memory_bytes,
            )


def read_csv(path: str) -> list[dict[str, str]]:
    """Return the rows of a table with a heading: the parameters of each job.

    Raises:
        UsageError: It cannot be read, or a row has more or fewer fields than the heading.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            heading, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from None
    names = [name.strip() for name in heading]
    if not rows or len(set(names)) < len(names) or not all(names):
        raise UsageError(
            path,
            "must have a heading of different names and a row for each job",
            found=f"the heading {','.join(names)!r} and {len(rows)} rows",
            do="For example: lr,seed and, below it, 1e-3,0.",
        )
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise UsageError(
                f"{path}, line {number}",
                f"must have {len(names)} fields",
                found=f"{len(row)}: {','.join(row)!r}",
                do="Quote a field that has a comma.",
            )
    return [dict(zip(names, map(str.strip, row), strict=True)) for row in rows]


def read_toml(path: str, defaults: JobDefaults) -> list[Job]:
    """Return the jobs of a TOML file.

    Keys at the top, or options of the command line, are the defaults of the tables [[job]]; a file
    without such tables is one job, or one for each combination of its grid.

    Raises:
        UsageError: It cannot be read, or has unknown keys or values of a wrong type.
    """
    import tomllib

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable(path, error) from None
    tables = document.pop("job", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(
            f"job in {path}", "must be tables", found=repr(tables), do="Write [[job]] before each."
        )
    common = _with_table(defaults, document, path)
    jobs: list[Job] = []
    for number, table in enumerate(tables, 1):
        where = f"{path}, job {number}"
        settings = _with_table(common, table, where)
        fixed = _texts(table.get("parameters", document.get("parameters", {})), where, "parameters")
        jobs += jobs_from_rows(settings, [fixed], where)
    return jobs


def _with_table(defaults: JobDefaults, table: Mapping[str, Any], where: str) -> JobDefaults:
    """Return defaults with the values of a table instead."""
    for name in table:
        if name not in JOB_KEYS:
            raise UsageError(
                f"{name} in {where}",
                f"is not a key of a job; the keys are {', '.join(JOB_KEYS)}",
                do=did_you_mean(closest(name, JOB_KEYS)),
            )
    values: dict[str, Any] = {"target": _target(defaults.target, table, where)}
    if "variables" in table:
        texts = _texts(table["variables"], where, "variables")
        values["variables"] = {**defaults.variables, **texts}
    if "grid" in table:
        values["axes"] = {**defaults.axes, **_axes(table["grid"], where)}
    if "name" in table:
        values["title"] = str(table["name"])
    if "retries" in table:
        values["retries"] = _whole(table["retries"], where, "retries", least=0)
    if "cores" in table:
        values["cores"] = _whole(table["cores"], where, "cores", least=1)
    if "timeout" in table:
        values["timeout_s"] = parse_duration(str(table["timeout"]), f"timeout in {where}")
    if "memory" in table:
        values["memory_bytes"] = parse_size(str(table["memory"]), f"memory in {where}")
    return defaults.replace(**values)


def _target(default: Target | None, table: Mapping[str, Any], where: str) -> Target | None:
    kinds = {
        "script": TargetKind.SCRIPT, "module": TargetKind.MODULE, "command": TargetKind.COMMAND
    }  # fmt: skip
    named = [name for name in kinds if name in table]
    if len(named) > 1:
        raise UsageError(
            f"{named[1]} in {where}", f"cannot be given with {named[0]}", do="Leave one out."
        )
    arguments = table.get("arguments", [])
    if not isinstance(arguments, list):
        raise UsageError(
            f"arguments in {where}",
            "must be a list",
            found=repr(arguments),
            do='For example: arguments = ["--epochs", "3"].',
        )
    words = tuple(map(_text, arguments))
    if named:
        name = table[named[0]]
        if named[0] == "command" and isinstance(name, list) and name:
            name, *first = map(_text, name)
            words = (*first, *words)
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"{named[0]} in {where}", "must be a text", found=repr(name), do="Quote it."
            )
        return Target(kind=kinds[named[0]], name=name, arguments=words)
    if default is None or not words:
        return default
    return default.replace(arguments=(*default.arguments, *words))


def _axes(grid: object, where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(grid, dict):
        raise UsageError(
            f"grid in {where}",
            "must be a table",
            found=repr(grid),
            do='For example: grid = {lr = [1e-3, 1e-2], seed = "0..7"}.',
        )
    axes = {}
    for name, values in grid.items():
        if isinstance(values, list):
            axes[name] = tuple(map(_text, values))
        else:
            _, axes[name] = read_axis(f"{name}={_text(values)}", f"grid in {where}")
    return axes


def _texts(table: object, where: str, key: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise UsageError(
            f"{key} in {where}",
            "must be a table",
            found=repr(table),
            do=f'For example: {key} = {{name = "value"}}.',
        )
    return {name: _text(value) for name, value in table.items()}


def _text(value: object) -> str:
    """Return a value of TOML as it stands on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(value: object, where: str, key: str, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            f"{key} in {where}",
            f"must be a whole number from {least} on",
            found=repr(value),
            do=f"For example: {key} = {max(least, 2)}.",
        )
    return value


def _unreadable(path: str, error: Exception) -> UsageError:
    return UsageError(
        path,
        "must be a readable file of jobs, TOML or CSV",
        found=getattr(error, "strerror", None) or str(error),
        do="See: cputrain help many",
    )


def default_folder(defaults: JobDefaults, path: str) -> str:
    """Return the folder of a queue beside the working folder's files: many-train."""
    name = path or (defaults.target.name if defaults.target else "jobs")
    stem, ending = os.path.splitext(os.path.basename(name.rstrip("/")))
    return f"many-{stem if ending else os.path.basename(name)}"
