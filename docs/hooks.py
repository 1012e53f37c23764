"""Pages of the reference, made from the code whenever the documentation is built.

mkdocs calls `on_files` and `on_post_page`; no page of this file is kept.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cputrain import errors
from cputrain.launch.cli import VERBS
from cputrain.launch.command import Command
from cputrain.launch.commands import every_command
from cputrain.launch.commands.bench import CASE_BENCHMARKS
from cputrain.launch.man_page import EXIT_CODES
from cputrain.settings.core.registry import USER_SETTINGS
from cputrain.variables import OCL_FALLBACK, OCL_TUNE

GOLDEN = Path(__file__).parents[1] / "tests/golden"

SEARCH_DIALOG = 'data-md-component="search" role="dialog"'

DOCUMENTS = {
    "info_schema.json": "cputrain info --json",
    "plan_schema.json": "cputrain plan --json",
    "diagnosis_schema.json": "cputrain diagnose --json",
}
"""Commands whose documents tests/golden holds."""

OCL_VARIABLES = (
    f"| `{OCL_FALLBACK}` | `needed\\|error` | operators that may run on the CPU instead:"
    " those without a kernel, or none |",
    f"| `{OCL_TUNE}` | `0` | take the most likely OpenCL kernel without measuring |",
)

OTHER_VARIABLES = (
    "| `OMP_NUM_THREADS`, `MKL_NUM_THREADS` | the number of threads, unless torchrun or accelerate"
    " has set it to 1 |",
    "| `LD_PRELOAD`, `MALLOC_*`, `GLIBC_TUNABLES` | the allocator is left as it is |",
    "| `XDG_CONFIG_HOME`, `XDG_CACHE_HOME` | folders of `cputrain/config.toml` and of caches |",
    "| `NO_COLOR`, `FORCE_COLOR`, `COLUMNS` | colors and width of tables |",
    "| `PET_*` | torchrun's options |",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    pages = {
        "reference/commands.md": commands,
        "reference/variables.md": variables,
        "reference/errors.md": exit_codes,
        "reference/json.md": documents,
    }
    for path, page in pages.items():
        files.append(File.generated(config, path, content="\n".join(page()) + "\n"))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Name the theme's search dialog for screen readers."""
    return output.replace(SEARCH_DIALOG, f'{SEARCH_DIALOG} aria-label="Search"')


def commands() -> Iterator[str]:
    """Yield the lines of the page on commands and their options."""
    yield "# Commands\n"
    yield "Every command has `--help`; `cputrain help COMMAND` shows the same.\n"
    yield "| command | |"
    yield "| --- | --- |"
    for verb, summary in VERBS.items():
        yield f"| [`cputrain {verb}`](#cputrain-{verb}) | {summary} |"
    yield ""
    for command in (*every_command(), *CASE_BENCHMARKS.values()):
        yield from _command(command)


def _command(command: Command) -> Iterator[str]:
    yield f"## {command.full_name}\n"
    usage = wrap(f"{command.full_name} {command.form}", 80, subsequent_indent="    ")
    yield "\n".join(["```text", *usage, "```\n"])
    yield f"{command.summary}\n"
    if command.notes:
        yield f"{command.notes_title}:\n"
        yield from (f"- `{name}`: {text}" for name, text in command.notes)
        yield ""
    if command.examples:
        yield "| example | |"
        yield "| --- | --- |"
        for example in command.examples:
            yield f"| `{_cell(example.line)}` | {example.does} |"
        yield ""
    for group in command.groups:
        yield f"**{group.title}**\n"
        yield "| option | |"
        yield "| --- | --- |"
        for option in group.options:
            names = ", ".join(f"`{name}`" for name in option.names)
            takes = f" `{_cell(option.takes)}`" if option.takes else ""
            yield f"| {names}{takes} | {_cell(option.help)} |"
        yield ""


def variables() -> Iterator[str]:
    """Yield the lines of the page on environment variables."""
    yield "# Environment variables\n"
    yield "Each [setting](../guide/settings.md) is a variable. An option overrides it.\n"
    yield "| variable | values | effect |"
    yield "| --- | --- | --- |"
    for setting in USER_SETTINGS.values():
        yield f"| `{setting.variable}` | `{_cell(setting.takes)}` | {_cell(setting.help)} |"
    yield from OCL_VARIABLES
    yield "\n## Of others\n"
    yield "These are read, and kept if you set them.\n"
    yield "| variable | effect |"
    yield "| --- | --- |"
    yield from OTHER_VARIABLES


def exit_codes() -> Iterator[str]:
    """Yield the lines of the page on exit codes and exceptions."""
    yield "# Exit codes and errors\n"
    yield "| code | meaning |"
    yield "| --- | --- |"
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    yield "\n## Exceptions\n"
    yield "All are in `cputrain.errors`."
    yield "A message names the parameter, the rule, the value found and the next step.\n"
    yield "| exception | also a | exit code | when |"
    yield "| --- | --- | --- | --- |"
    for kind in _tree(errors.CputrainError):
        others = [
            base.__name__ for base in kind.__bases__ if not issubclass(base, errors.CputrainError)
        ]
        also = ", ".join(f"`{name}`" for name in others if name != "Exception")
        summary = inspect.getdoc(kind) or ""
        yield f"| `{kind.__name__}` | {also} | {kind.exit_code} | {summary.splitlines()[0]} |"


def documents() -> Iterator[str]:
    """Yield the lines of the page on JSON documents."""
    yield "# JSON documents\n"
    yield "Commands with `--json` print a document with these fields."
    yield "`[]` stands for each item of a list, `*` for any key.\n"
    yield "Fields may be added. Where one changes its meaning, `schema_version` is raised.\n"
    for name, command in DOCUMENTS.items():
        yield f"## {command}\n"
        yield "| field | type |"
        yield "| --- | --- |"
        schema: dict[str, Any] = json.loads((GOLDEN / name).read_text())
        for path, kind in schema.items():
            yield f"| `{_cell(path)}` | {kind} |"
        yield ""


def _tree(kind: type[errors.CputrainError]) -> Iterator[type[errors.CputrainError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
