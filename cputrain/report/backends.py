"""Tables of compute backends, for `cputrain info --backends`."""

from __future__ import annotations

from cputrain.backends import choose_backend
from cputrain.report.terminal import show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cputrain.backends import BackendFinding, ModeVerdict

NONE = "–"
"""Text of a cell without a value."""

LAYER_COLUMNS = ("layer", "output", "loss", "gradient", "weight", "after a change", "speed", "")
"""Headings of the table of layers; the first five after "layer" are keys of `differences`."""


def show_backends(out: Console, findings: Sequence[BackendFinding]) -> None:
    """Print each backend with its verdict and measurements, and the backends to choose."""
    show_table(
        out,
        ("backend", "version", "description", "made for", "training", "evaluation"),
        [_row(finding) for finding in findings],
    )
    for finding in findings:
        if finding.probed.reason and finding.probed.do:
            _print_note(out, f"{finding.probed.name}: {finding.probed.do}")
        if finding.note:
            _print_note(out, f"{finding.probed.name}: {finding.note}")
        if finding.verdict is None:
            continue
        for mode, judged in (
            ("training", finding.verdict.training),
            ("evaluation", finding.verdict.evaluation),
        ):
            if judged is not None:
                title = f"{finding.probed.name}, {mode}: differences from the default, and speed"
                show_table(out, LAYER_COLUMNS, layer_rows(judged), title=title)
    if any(not finding.probed.reason and finding.verdict is None for finding in findings[1:]):
        _print_note(out, "Not examined yet: cputrain info --backends --measure")
    names = [choose_backend(findings, training=training) for training in (True, False)]
    if all(names):
        out.print(f"Correct and fastest here: {names[0]} for training, {names[1]} for evaluation.")


def _print_note(out: Console, text: str) -> None:
    out.print(text, style="dim", markup=False, soft_wrap=True)


def layer_rows(judged: ModeVerdict) -> list[tuple[str, ...]]:
    """Return a table row for each measured layer: numerical differences and speed-up."""
    return [
        (
            layer.layer,
            *(_difference(layer.differences, kind) for kind in LAYER_COLUMNS[1:6]),
            NONE if layer.speedup is None else f"{layer.speedup:.2f}×",
            layer.fault,
        )
        for layer in judged.layers
    ]


def _difference(differences: dict[str, float | None], kind: str) -> str:
    """Format a difference; None is one that is not a number."""
    if kind not in differences:
        return NONE
    difference = differences[kind]
    return "NaN" if difference is None else f"{difference:.0e}"


def _row(finding: BackendFinding) -> tuple[str, ...]:
    """Return a backend's row of the overview."""
    probed = finding.probed
    version = probed.version or NONE
    if probed.reason:
        return probed.name, version, probed.title, probed.purpose, probed.reason, NONE
    if probed.name == "default":
        reference = f"reference for the others ({probed.notes})"
        return probed.name, version, probed.title, probed.purpose, reference, NONE
    if finding.verdict is None:
        return probed.name, version, probed.title, probed.purpose, "not examined", "not examined"
    cells = (
        NONE if judged is None else str(judged)
        for judged in (finding.verdict.training, finding.verdict.evaluation)
    )
    return probed.name, version, probed.title, probed.purpose, *cells
