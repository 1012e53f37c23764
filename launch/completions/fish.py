"""Completions for fish."""

from __future__ import annotations

from cputrain.launch.completions.table import Row, every_row

HEAD = """\
# Completions of cputrain for fish. To use them in this shell: cputrain completions fish | source

complete -c cputrain -f
"""


def script() -> str:
    """Return the completion script."""
    lines = [HEAD]
    for row in every_row():
        lines.append(
            f"complete -c cputrain -n __fish_use_subcommand -a {row.name} -d {_quoted(row.summary)}"
        )
        lines += _completions(row)
    return "\n".join(lines) + "\n"


def _completions(row: Row) -> list[str]:
    start = f"complete -c cputrain -n '__fish_seen_subcommand_from {row.name}'"
    lines = []
    for option in row.options:
        words = [start]
        for name in option.names:
            words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
        if option.takes:
            values = " ".join(option.words)
            words.append(f"-x -a {_quoted(values)}" if values else "-r -F")
        words.append(f"-d {_quoted(option.help)}")
        lines.append(" ".join(words))
    if row.words:
        lines.append(f"{start} -a {_quoted(' '.join(row.words))}")
    if row.files:
        suffix = row.files.removeprefix("*")
        lines.append(f"{start} -k -a '(__fish_complete_suffix {suffix})'")
    return lines


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
