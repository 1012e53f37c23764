"""Terminal output of a diagnosis, and of the comparison of two."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.report.figures import (
    milliseconds,
    no_finding,
    operator_share,
    option,
    part_of,
    rate,
    reached,
    roughness,
    shapes,
    spread,
)
from cputrain.report.terminal import show_pairs, show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console

    from cputrain.diagnose import Diagnosis, DiagnosisComparison
    from cputrain.diagnose.comparison import TimeChange

LEAST_GAIN = 1.03
"""Measured speed-up from which a remedy is recommended."""

MAX_DETAILED = 3
"""Largest number of findings that are shown with their evidence."""

MAX_LAYERS = 8
"""Largest number of rows of the layer table."""

MAX_OPERATORS = 6
"""Largest number of rows of the operator table."""


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print a diagnosis: step time, findings with remedies, and tables of layers and operators."""
    from rich.text import Text

    seen, roof = diagnosis.seen, diagnosis.roof
    num_calls = sum(operator.calls for operator in seen.operators)
    pairs = [
        ("forward", _part(seen.forward, seen.step)),
        ("backward", _part(seen.backward, seen.step)),
        ("optimizer", _part(seen.optimizer, seen.step)),
        ("loader", _part(seen.wait, seen.step) if seen.wait else None),
        ("operators", f"{num_calls:.0f}, {_part(seen.computing, seen.instrumented_step)}"),
        ("between operators", _part(seen.between, seen.step)),
        ("reached", reached(diagnosis)),
        ("timed", f"{counted(seen.steps, 'step')} with {counted(seen.threads, 'thread')}; "
                  f"{spread(seen)}"),
    ]  # fmt: skip
    show_pairs(out, f"A step of {diagnosis.script}: {milliseconds(seen.step)}", pairs)
    out.print()
    if diagnosis.rough:
        out.print(Text(f"{roughness(diagnosis)}\n"))
    if not diagnosis.findings:
        out.print(Text(no_finding(diagnosis), style="bold"))
    for number, finding in enumerate(diagnosis.findings[:MAX_DETAILED], 1):
        out.print(Text(f"{number}. {finding.title}", style="bold"))
        for line in finding.evidence:
            out.print(Text(f"   {line}", style="dim"))
        confidence = f"{finding.sure}, rough" if diagnosis.rough else finding.sure
        gain = f"{finding.speedup:.2f} times as fast ({confidence})"
        out.print(Text(f"   {finding.remedy}: {gain}"))
    for finding in diagnosis.findings[MAX_DETAILED:]:
        gain = f"{finding.speedup:.2f} times as fast"
        out.print(Text(f"   also: {finding.title}; {finding.remedy}: {gain}"))
    if len(diagnosis.findings) > 1:
        out.print(Text(f"With all remedies: at best {diagnosis.speedup_of_all:.2f} times as fast."))
    show_table(
        out, ("layers", "count", "forward", "backward", "share", "cumulative", "at most"),
        [(layer.kind, str(layer.count or ""), milliseconds(layer.forward),
          milliseconds(layer.backward), f"{layer.share:.0%}", f"{layer.cumulated:.0%}",
          f"{layer.most:.2f}×")
         for layer in diagnosis.layers[:MAX_LAYERS]],
        title="Time by layer, and the speed-up of a step if it took no time",
    )  # fmt: skip
    slowest = sorted(seen.operators, key=lambda operator: -operator.seconds)[:MAX_OPERATORS]
    show_table(
        out, ("operator", "shapes", "in", "calls", "time", "GFLOP/s", "GB/s", "of the roof"),
        [(operator.name, shapes(operator.shapes[:3]), operator.layer or operator.phase,
          f"{operator.calls:.0f}", milliseconds(operator.seconds),
          f"{operator.flops_per_s / 1e9:.3g}" if operator.flops else "",
          f"{operator.bytes_per_s / 1e9:.3g}" if operator.bytes else "",
          operator_share(operator, roof, seen.threads)) for operator in slowest],
        title="The slowest operators; this CPU has "
        f"{rate(roof.flops('float32', seen.threads), 'FLOP/s')} in float32, its memory "
        f"{rate(roof.bandwidth(seen.threads), 'B/s')}, its L3 "
        f"{rate(roof.bandwidth(seen.threads, 'l3'), 'B/s')} and its L2 "
        f"{rate(roof.bandwidth(seen.threads, 'l2'), 'B/s')}" + (", rough" if roof.rough else ""),
    )  # fmt: skip


def show_applied(out: Console, diagnosis: Diagnosis) -> None:
    """Print the predicted and measured speed-up of each remedy that was tried."""
    from rich.text import Text

    applied = diagnosis.applied
    if not applied:
        return
    show_table(
        out, ("remedy against", "options", "predicted", "measured"),
        [(remedy.title, " ".join(option(*setting) for setting in remedy.settings.items()),
          "" if remedy.predicted is None else f"{remedy.predicted:.2f}×",
          remedy.fault if remedy.measured is None else f"{remedy.measured:.2f}×")
         for remedy in applied],
        title="Tried: speed-up of a step",
    )  # fmt: skip
    measured = [remedy for remedy in applied if remedy.measured is not None]
    best = max(measured, key=lambda remedy: remedy.measured or 0.0, default=None)
    if diagnosis.rough:
        out.print(Text("These figures are rough, too: stop other programs, and measure again."))
    elif best is not None and (best.measured or 0.0) > LEAST_GAIN:
        options = [option(*setting) for setting in best.settings.items()]
        out.print(Text(" ".join(["Next: cputrain launch", *options, diagnosis.script])))


def show_compared(out: Console, comparison: DiagnosisComparison) -> None:
    """Print the comparison of two diagnosed runs."""
    from rich.text import Text

    for reason in comparison.rough:
        out.print(Text(f"Figures are rough: {reason}", style="dim"))
    for difference in comparison.differs:
        out.print(Text(f"Different in the runs: {difference}", style="dim"))
    is_faster = comparison.speedup >= 1
    ratio = comparison.speedup if is_faster else 1 / comparison.speedup
    summary = f"{ratio:.2f} times as {'fast' if is_faster else 'slow'}: the second run's steps"
    if not comparison.sure:
        summary += ", which is within the variation of a run's steps"
    out.print(Text(summary, style="bold"))
    head = ("first", "second", "saved", "times as fast")
    for title, rows in (
        ("a step", comparison.parts), ("layers", comparison.layers[:MAX_LAYERS]),
        ("operators that changed most", comparison.operators[:MAX_OPERATORS]),
    ):  # fmt: skip
        show_table(out, (title, *head), map(_row, rows))
    for label, titles in (("gone", comparison.gone), ("new", comparison.new)):
        for title in titles:
            out.print(Text(f"{label}: {title}"))


def _row(change: TimeChange) -> tuple[str, ...]:
    """Return the cells of a change: name, both times, saved time, and speed-up."""
    ratio = f"{change.before / change.after:.2f}×" if change.before and change.after else ""
    before, after = milliseconds(change.before), milliseconds(change.after)
    return change.name, before, after, milliseconds(change.saved), ratio


def _part(seconds: float, total_s: float) -> str:
    """Format a time, and its fraction of another."""
    return f"{milliseconds(seconds) or '0 ms'} ({part_of(seconds, total_s)})"
