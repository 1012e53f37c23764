"""Diagnosis and comparison of two diagnoses, for the terminal."""

from __future__ import annotations

from cputrain.report.figures import (
    NOTHING,
    doubts,
    milliseconds,
    operator_share,
    option,
    part_of,
    rate,
    reached,
    shapes,
    spread,
)
from cputrain.report.terminal import show_pairs, show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cputrain.diagnose import Diagnosis, DiagnosisComparison, TriedRemedy
    from cputrain.diagnose.comparison import TimeChange

SHOWN = 3
"""Number of findings shown in full."""

LAYERS = 8
OPERATORS = 6
"""Maximum rows of the operator table; `LAYERS` limits the layer table."""


def show_diagnosis(out: Console, found: Diagnosis) -> None:
    """Print a diagnosis: step time, findings with remedies, and tables of layers and operators."""
    from rich.text import Text

    seen, roof = found.seen, found.roof
    calls = sum(one.calls for one in seen.operators)
    pairs = [
        ("forward", _part(seen.forward, seen.step)),
        ("backward", _part(seen.backward, seen.step)),
        ("optimizer", _part(seen.optimizer, seen.step)),
        ("loader", _part(seen.wait, seen.step) if seen.wait else None),
        ("operators", f"{calls:.0f}, {_part(seen.computing, seen.instrumented_step)}"),
        ("between them", _part(seen.between, seen.step)),
        ("reached", reached(found)),
        ("timed", f"{seen.steps} steps with {seen.threads} threads; {spread(seen)}"),
    ]  # fmt: skip
    show_pairs(out, f"A step of {found.script}: {milliseconds(seen.step)}", pairs)
    out.print()
    if found.rough:
        out.print(Text(f"{doubts(found)}\n"))
    if not found.findings:
        out.print(Text(NOTHING, style="bold"))
    for number, one in enumerate(found.findings[:SHOWN], 1):
        out.print(Text(f"{number}. {one.title}", style="bold"))
        for line in one.evidence:
            out.print(Text(f"   {line}", style="dim"))
        sure = f"{one.sure}, rough" if found.rough else one.sure
        gain = f"{one.speedup:.2f} times as fast ({sure})"
        out.print(Text(f"   {one.remedy}: {gain}"))
    for one in found.findings[SHOWN:]:
        out.print(Text(f"   also: {one.title}; {one.remedy}: {one.speedup:.2f} times as fast"))
    show_table(
        out, ("layers", "how many", "forward", "backward", "share", "together", "at most"),
        [(one.kind, str(one.count or ""), milliseconds(one.forward), milliseconds(one.backward),
          f"{one.share:.0%}", f"{one.cumulated:.0%}", f"{one.most:.2f}×")
         for one in found.layers[:LAYERS]],
        title="Where the time goes, and how much faster a step were without",
    )  # fmt: skip
    dearest = sorted(seen.operators, key=lambda one: -one.seconds)[:OPERATORS]
    show_table(
        out, ("operator", "shapes", "in", "calls", "time", "GFLOP/s", "GB/s", "of the roof"),
        [(one.name, shapes(one.shapes[:3]),
          one.layer or one.phase, f"{one.calls:.0f}", milliseconds(one.seconds),
          f"{one.flops_per_s / 1e9:.3g}" if one.flops else "",
          f"{one.bytes_per_s / 1e9:.3g}" if one.bytes else "",
          operator_share(one, roof, seen.threads)) for one in dearest],
        title="The dearest operators; this CPU has "
        f"{rate(roof.flops('float32', seen.threads), 'FLOP/s')} in float32, its memory "
        f"{rate(roof.bandwidth(seen.threads), 'B/s')}, its L3 "
        f"{rate(roof.bandwidth(seen.threads, 'l3'), 'B/s')} and its L2 "
        f"{rate(roof.bandwidth(seen.threads, 'l2'), 'B/s')}" + (", rough" if roof.rough else ""),
    )  # fmt: skip


def show_applied(out: Console, applied: Sequence[TriedRemedy]) -> None:
    """Print the predicted and measured speed-up of each remedy that was tried."""
    if not applied:
        return
    show_table(
        out, ("remedy against", "options", "predicted", "measured"),
        [(one.title, " ".join(option(*pair) for pair in one.settings.items()),
          "" if one.predicted is None else f"{one.predicted:.2f}×",
          one.fault if one.measured is None else f"{one.measured:.2f}×") for one in applied],
        title="Tried: how many times as fast a step is",
    )  # fmt: skip


def show_compared(out: Console, found: DiagnosisComparison) -> None:
    """Print two diagnosed runs side by side."""
    from rich.text import Text

    for one in found.rough:
        out.print(Text(f"Figures are rough: {one}", style="dim"))
    for one in found.differs:
        out.print(Text(f"Not the same in both: {one}", style="dim"))
    faster = found.speedup >= 1
    times = found.speedup if faster else 1 / found.speedup
    said = f"{times:.2f} times as {'fast' if faster else 'slow'}: the second run's steps"
    if not found.sure:
        said += ", which is no more than steps of a run differ"
    out.print(Text(said, style="bold"))
    head = ("first", "second", "saved", "times as fast")
    for title, rows in (
        ("a step", found.parts), ("layers", found.layers[:LAYERS]),
        ("operators that changed most", found.operators[:OPERATORS]),
    ):  # fmt: skip
        show_table(out, (title, *head), map(_row, rows))
    for name, titles in (("gone", found.gone), ("new", found.new)):
        for one in titles:
            out.print(Text(f"{name}: {one}"))


def _row(one: TimeChange) -> tuple[str, ...]:
    times = f"{one.before / one.after:.2f}×" if one.before and one.after else ""
    before, after = milliseconds(one.before), milliseconds(one.after)
    return one.name, before, after, milliseconds(one.saved), times


def _part(seconds: float, whole: float) -> str:
    return f"{milliseconds(seconds) or '0 ms'} ({part_of(seconds, whole)})"
