"""A diagnosis as a page of a terminal."""

from __future__ import annotations

from cputrain.report.terminal import show_pairs, show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cputrain.diagnose import Applied, Diagnosis

SHOWN = 3
"""Findings in full."""

RESTLESS = 0.3
"""How far apart steps are, and how many CPUs others have, from which on that is said."""

LAYERS = 8
OPERATORS = 6
"""Lines of their tables."""


def show_diagnosis(out: Console, found: Diagnosis) -> None:
    """What was found, what to do, and where the time goes."""
    from rich.text import Text

    seen, roof = found.seen, found.roof
    forward = max(0.0, seen.step - seen.wait - seen.backward - seen.optimizer)
    calls = sum(one.calls for one in seen.operators)
    pairs = [
        ("forward", _part(forward, seen.step)),
        ("backward", _part(seen.backward, seen.step)),
        ("optimizer", _part(seen.optimizer, seen.step)),
        ("loader", _part(seen.wait, seen.step) if seen.wait else None),
        ("operators", f"{calls:.0f}, {_part(seen.computing, seen.step)}"),
        ("between them", _part(seen.between, seen.step)),
        ("reached", _reached(found)),
        ("timed", f"{seen.steps} steps with {seen.threads} threads; half of them within "
         f"{seen.spread:.0%}"),
    ]  # fmt: skip
    show_pairs(out, f"A step of {found.script}: {_ms(seen.step)}", pairs)
    out.print()
    if seen.spread > RESTLESS or (seen.others > RESTLESS and not seen.loaders):
        out.print(Text("Something else ran meanwhile, or steps differ: figures are rough.\n"))
    if not found.findings:
        out.print(
            Text("Nothing worth doing was found: no cause costs 5 % of a step.", style="bold")
        )
    for number, one in enumerate(found.findings[:SHOWN], 1):
        out.print(Text(f"{number}. {one.title}", style="bold"))
        for line in one.evidence:
            out.print(Text(f"   {line}", style="dim"))
        gain = f"{one.speedup:.2f} times as fast ({one.sure})"
        out.print(Text(f"   {one.remedy}: {gain}"))
    for one in found.findings[SHOWN:]:
        out.print(Text(f"   also: {one.title}; {one.remedy}: {one.speedup:.2f} times as fast"))
    show_table(
        out, ("layers", "how many", "forward", "backward", "share", "together", "at most"),
        [(one.kind, str(one.count or ""), _ms(one.forward), _ms(one.backward), f"{one.share:.0%}",
          f"{one.cumulated:.0%}", f"{one.most:.2f}×") for one in found.layers[:LAYERS]],
        title="Where the time goes, and how much faster a step were without",
    )  # fmt: skip
    dearest = sorted(seen.operators, key=lambda one: -one.seconds)[:OPERATORS]
    show_table(
        out, ("operator", "forms", "in", "calls", "time", "GFLOP/s", "GB/s"),
        [(one.name, " ".join("x".join(map(str, shape)) or "·" for shape in one.shapes[:3]),
          one.layer or one.phase, f"{one.calls:.0f}", _ms(one.seconds),
          f"{one.flops / one.seconds / 1e9:.3g}" if one.flops else "",
          f"{one.bytes / one.seconds / 1e9:.3g}") for one in dearest],
        title="The dearest operators; this CPU has "
        f"{roof.flops('float32', seen.threads) / 1e9:.3g} GFLOP/s in float32, its memory "
        f"{roof.bandwidth(seen.threads) / 1e9:.3g} GB/s",
    )  # fmt: skip


def show_applied(out: Console, applied: Sequence[Applied]) -> None:
    """What remedies came to, where they were tried."""
    if not applied:
        return
    show_table(
        out, ("remedy against", "options", "predicted", "measured"),
        [(one.title, " ".join(_option(*pair) for pair in one.settings.items()),
          "" if one.predicted is None else f"{one.predicted:.2f}×",
          one.fault if one.measured is None else f"{one.measured:.2f}×") for one in applied],
        title="Tried: how many times as fast a step is",
    )  # fmt: skip


def _option(name: str, value: str) -> str:
    return f"--{name.replace('_', '-')} {value}"


def _reached(found: Diagnosis) -> str:
    seen, roof = found.seen, found.roof
    flops = sum(one.flops for one in seen.operators)
    rate, most = flops / seen.step, roof.flops("float32", seen.threads)
    return f"{rate / 1e9:.3g} GFLOP/s of {most / 1e9:.3g} in float32 ({rate / most:.0%})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds else ""


def _part(seconds: float, whole: float) -> str:
    return f"{_ms(seconds) or '0 ms'} ({seconds / whole:.0%})"
