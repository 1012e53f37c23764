"""Tables of compute backends, for `cputrain info --backends`."""

from __future__ import annotations

from cputrain.backends import choose_backend
from cputrain.report.terminal import show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cputrain.backends import BackendFinding, ModeVerdict

NOTHING = "–"

LAYER_COLUMNS = ("layer", "output", "loss", "gradient", "weight", "after a change", "speed", "")


def show_backends(out: Console, found: Sequence[BackendFinding]) -> None:
    """Print each backend with its verdict and measurements, and the backends to choose."""
    show_table(
        out,
        ("backend", "version", "what it is", "made for", "training", "evaluation"),
        [_row(one) for one in found],
    )
    for one in found:
        if one.probed.reason and one.probed.do:
            _say(out, f"{one.probed.name}: {one.probed.do}")
        if one.note:
            _say(out, f"{one.probed.name}: {one.note}")
        if one.verdict is None:
            continue
        for what, judged in (
            ("training", one.verdict.training),
            ("evaluation", one.verdict.evaluation),
        ):
            if judged is not None:
                title = f"{one.probed.name}, {what}: how far from the default, and how fast"
                show_table(out, LAYER_COLUMNS, layer_rows(judged), title=title)
    if any(not one.probed.reason and one.verdict is None for one in found[1:]):
        _say(out, "Not examined yet: cputrain info --backends --measure")
    names = [choose_backend(found, training=training) for training in (True, False)]
    if all(names):
        out.print(f"Right here, and fastest: {names[0]} for training, {names[1]} for evaluation.")


def _say(out: Console, text: str) -> None:
    out.print(text, style="dim", markup=False, soft_wrap=True)


def layer_rows(judged: ModeVerdict) -> list[tuple[str, ...]]:
    """Return a table row for each measured layer: numerical differences and speed-up."""
    return [
        (
            one.layer,
            *(_far(one.differences, kind) for kind in LAYER_COLUMNS[1:6]),
            NOTHING if one.speedup is None else f"{one.speedup:.2f}×",
            one.fault,
        )
        for one in judged.layers
    ]


def _far(differences: dict[str, float | None], kind: str) -> str:
    if kind not in differences:
        return NOTHING
    far = differences[kind]
    return "no number" if far is None else f"{far:.0e}"


def _row(one: BackendFinding) -> tuple[str, ...]:
    probed = one.probed
    version = probed.version or NOTHING
    if probed.reason:
        return probed.name, version, probed.title, probed.purpose, probed.reason, NOTHING
    if probed.name == "default":
        says = f"what others are held against ({probed.notes})"
        return probed.name, version, probed.title, probed.purpose, says, NOTHING
    if one.verdict is None:
        return probed.name, version, probed.title, probed.purpose, "not examined", "not examined"
    cells = (
        NOTHING if judged is None else str(judged)
        for judged in (one.verdict.training, one.verdict.evaluation)
    )
    return probed.name, version, probed.title, probed.purpose, *cells
