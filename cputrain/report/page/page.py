"""HTML page of a diagnosis."""

from __future__ import annotations

from importlib.resources import files

from cputrain.report.figures import (
    NO_FINDING,
    milliseconds,
    operator_share,
    option,
    rate,
    reached,
    roughness,
    shapes,
    spread,
)
from cputrain.report.page.drawing import drawing
from cputrain.report.page.marks import element, percent, table, text
from cputrain.report.page.roofline import roofline
from cputrain.report.page.timeline import phase_bars, timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose import Diagnosis, Finding, TriedRemedy

MAX_OPERATORS = 40
"""Largest number of rows of the operator table."""

MAX_LAYERS = 24
"""Largest number of rows of the layer table."""

CAUSE_NAMES = {
    "memory": "memory traffic",
    "work": "too little parallel work",
    "input": "waiting for input",
    "overlap": "poor overlap",
    "units": "unused CPU units",
    "code": "unoptimised code",
}
"""Display name of each cause."""


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the HTML page of a diagnosis, with its style sheet and script embedded."""
    folder = files("cputrain.report.page")
    style, script = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    title = f"{diagnosis.script}: {milliseconds(diagnosis.seen.step)} a step"
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,">'
        + text("title", title)
        + element("style", style)
    )  # fmt: skip
    body = (
        _header(diagnosis)
        + _section("What to do", _findings(diagnosis))
        + _section("Tried", _applied(diagnosis))
        + _section("A step", phase_bars(diagnosis.seen) + timeline(diagnosis))
        + _section("Time by layer", _layers(diagnosis))
        + _section("Roofline of operators", roofline(diagnosis))
        + _section("Operators", _operators(diagnosis))
        + _section("The machine", drawing(diagnosis.box, diagnosis.seen.threads))
        + _footer(diagnosis)
    )
    page = element("head", head) + element(
        "body", element("main", body), '<div class="tip" hidden></div>', element("script", script)
    )
    return f"<!doctype html>\n{element('html', page, lang='en')}\n"


def _section(title: str, inside: str) -> str:
    return element("section", text("h2", title), inside) if inside else ""


def _header(diagnosis: Diagnosis) -> str:
    seen = diagnosis.seen
    facts = (
        ("reached", reached(diagnosis)),
        ("operators", f"{sum(operator.calls for operator in seen.operators):.0f} in "
         f"{milliseconds(seen.computing)}, {milliseconds(seen.between) or '0 ms'} between "
         "operators"),
        ("timed", f"{seen.steps} steps with {seen.threads} thread{'s' * (seen.threads != 1)}; "
         f"{spread(seen)}"),
        ("on", f"{diagnosis.box.name}, torch {diagnosis.roof.torch}, {diagnosis.when}"),
    )  # fmt: skip
    inside = [element("div", text("dt", name), text("dd", value)) for name, value in facts]
    return element(
        "header", text("p", diagnosis.script, class_="script"),
        element("h1", text("b", milliseconds(seen.step)), " a step"),
        element("dl", *inside),
        text("p", roughness(diagnosis), class_="warning") if diagnosis.rough else "",
    )  # fmt: skip


def _findings(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return text("p", NO_FINDING, class_="good")
    rough = ", rough" if diagnosis.rough else ""
    return element(
        "ol", *(_finding(finding, rough) for finding in diagnosis.findings), class_="findings"
    )


def _finding(finding: Finding, rough: str) -> str:
    # older documents have no `changes`, only `exact`
    changes = "fewer bits" if finding.changes in {"", "fewer bits"} else "not exact"
    label = "" if finding.exact else text("span", changes, class_="bits")
    return element(
        "li",
        element(
            "div", text("span", CAUSE_NAMES.get(finding.cause, finding.cause), class_="cause"),
            label, element("span", text("b", f"{finding.speedup:.2f}×"), f" {finding.sure}{rough}",
                           class_="gain"),
            class_="top",
        ),
        text("h3", finding.title),
        element("ul", *(text("li", line) for line in finding.evidence)),
        text("p", finding.remedy, class_="remedy"),
    )  # fmt: skip


def _applied(diagnosis: Diagnosis) -> str:
    if not diagnosis.applied:
        return ""

    def row(remedy: TriedRemedy) -> tuple[str, ...]:
        settings = " ".join(option(*setting) for setting in remedy.settings.items())
        return (
            text("span", remedy.title), text("code", settings),
            "" if remedy.predicted is None else f"{remedy.predicted:.2f}×",
            text("span", remedy.fault) if remedy.measured is None else f"{remedy.measured:.2f}×",
        )  # fmt: skip

    head = ("remedy against", "options", "predicted", "measured")
    return table(head, map(row, diagnosis.applied), numbers=frozenset({2, 3}))


def _layers(diagnosis: Diagnosis) -> str:
    rows = [
        (
            text("span", layer.kind),
            element("span", f"{layer.share:.0%}", class_="share",
                    style=f"--share:{percent(min(1.0, layer.share))}"),
            f"{layer.cumulated:.0%}", milliseconds(layer.forward), milliseconds(layer.backward),
            f"{layer.most:.2f}×", str(layer.count or ""),
        )
        for layer in diagnosis.layers[:MAX_LAYERS]
    ]  # fmt: skip
    head = ("layers", "share", "cumulative", "forward", "backward", "at most", "count")
    return table(head, rows, numbers=frozenset(range(1, 7))) + text(
        "p", "At most: speed-up of a step if these layers took no time.", class_="note"
    )


def _operators(diagnosis: Diagnosis) -> str:
    slowest = sorted(diagnosis.seen.operators, key=lambda operator: -operator.seconds)[
        :MAX_OPERATORS
    ]
    rows = [
        (
            text("code", operator.name), text("span", shapes(operator.shapes)),
            text("span", operator.layer), text("span", operator.phase), f"{operator.calls:.0f}",
            milliseconds(operator.seconds),
            rate(operator.flops_per_s, "FLOP/s") if operator.flops and operator.seconds else "",
            rate(operator.bytes_per_s, "B/s") if operator.bytes and operator.seconds else "",
            operator_share(operator, diagnosis.roof, diagnosis.seen.threads),
        )
        for operator in slowest
    ]  # fmt: skip
    head = ("operator", "shapes", "in", "", "calls", "time", "computes", "moves", "of the roof")
    count = len(slowest)
    return element(
        "details",
        text("summary", f"the {count} slowest of {len(diagnosis.seen.operators)}"),
        table(head, rows, numbers=frozenset(range(4, 9))),
    )


def _footer(diagnosis: Diagnosis) -> str:
    return text(
        "footer",
        f"cputrain {diagnosis.cputrain}. Times are medians of undisturbed steps; operators were "
        "timed one by one in the steps after those. The machine's roof was measured through torch"
        + (", and is rough." if diagnosis.roof.rough else "."),
    )
