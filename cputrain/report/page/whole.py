"""Whole page of a diagnosis."""

from __future__ import annotations

from importlib.resources import files

from cputrain.report.figures import (
    NOTHING,
    doubts,
    milliseconds,
    operator_share,
    option,
    rate,
    reached,
    shapes,
    spread,
)
from cputrain.report.page.drawing import drawing
from cputrain.report.page.marks import element, part, table, text
from cputrain.report.page.roofline import roofline
from cputrain.report.page.timeline import line, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose import Diagnosis, Finding, TriedRemedy

OPERATORS = 40
"""Maximum rows of the operator table."""

LAYERS = 24

CAUSES = {
    "memory": "memory traffic",
    "work": "too little parallel work",
    "input": "waiting for input",
    "overlap": "poor overlap",
    "units": "units that are not used",
    "code": "unoptimised code",
}


def diagnosis_page(found: Diagnosis) -> str:
    """Return the HTML page of a diagnosis, with its style sheet and script embedded."""
    own = files("cputrain.report.page")
    style, program = (
        own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    title = f"{found.script}: {milliseconds(found.seen.step)} a step"
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,">'
        + text("title", title)
        + element("style", style)
    )  # fmt: skip
    body = (
        _header(found)
        + _section("What to do", _findings(found))
        + _section("Tried", _applied(found))
        + _section("A step", parts(found.seen) + line(found))
        + _section("Where the time goes", _layers(found))
        + _section("What holds each operator back", roofline(found))
        + _section("Operators", _operators(found))
        + _section("The machine", drawing(found.box, found.seen.threads))
        + _footer(found)
    )
    page = element("head", head) + element(
        "body", element("main", body), '<div class="tip" hidden></div>', element("script", program)
    )
    return f"<!doctype html>\n{element('html', page, lang='en')}\n"


def _section(title: str, inside: str) -> str:
    return element("section", text("h2", title), inside) if inside else ""


def _header(found: Diagnosis) -> str:
    seen = found.seen
    facts = (
        ("reached", reached(found)),
        ("operators", f"{sum(one.calls for one in seen.operators):.0f} in "
         f"{milliseconds(seen.computing)}, {milliseconds(seen.between) or '0 ms'} between them"),
        ("timed", f"{seen.steps} steps with {seen.threads} thread{'s' * (seen.threads != 1)}; "
         f"{spread(seen)}"),
        ("on", f"{found.box.name}, torch {found.roof.torch}, {found.when}"),
    )  # fmt: skip
    inside = [element("div", text("dt", name), text("dd", value)) for name, value in facts]
    return element(
        "header", text("p", found.script, class_="script"),
        element("h1", text("b", milliseconds(seen.step)), " a step"),
        element("dl", *inside),
        text("p", doubts(found), class_="warning") if found.rough else "",
    )  # fmt: skip


def _findings(found: Diagnosis) -> str:
    if not found.findings:
        return text("p", NOTHING, class_="good")
    rough = ", rough" if found.rough else ""
    return element("ol", *(_finding(one, rough) for one in found.findings), class_="findings")


def _finding(one: Finding, rough: str) -> str:
    # older documents have no `changes`, only `exact`
    changes = "fewer bits" if one.changes in {"", "fewer bits"} else "not exact"
    bits = "" if one.exact else text("span", changes, class_="bits")
    return element(
        "li",
        element(
            "div", text("span", CAUSES.get(one.cause, one.cause), class_="cause"), bits,
            element("span", text("b", f"{one.speedup:.2f}×"), f" {one.sure}{rough}", class_="gain"),
            class_="top",
        ),
        text("h3", one.title),
        element("ul", *(text("li", each) for each in one.evidence)),
        text("p", one.remedy, class_="remedy"),
    )  # fmt: skip


def _applied(found: Diagnosis) -> str:
    if not found.applied:
        return ""

    def row(one: TriedRemedy) -> tuple[str, ...]:
        settings = " ".join(option(*each) for each in one.settings.items())
        return (
            text("span", one.title), text("code", settings),
            "" if one.predicted is None else f"{one.predicted:.2f}×",
            text("span", one.fault) if one.measured is None else f"{one.measured:.2f}×",
        )  # fmt: skip

    head = ("remedy against", "options", "predicted", "measured")
    return table(head, map(row, found.applied), numbers=frozenset({2, 3}))


def _layers(found: Diagnosis) -> str:
    rows = [
        (
            text("span", one.kind),
            element("span", f"{one.share:.0%}", class_="share",
                    style=f"--share:{part(min(1.0, one.share))}"),
            f"{one.cumulated:.0%}", milliseconds(one.forward), milliseconds(one.backward),
            f"{one.most:.2f}×", str(one.count or ""),
        )
        for one in found.layers[:LAYERS]
    ]  # fmt: skip
    head = ("layers", "share", "together", "forward", "backward", "at most", "how many")
    return table(head, rows, numbers=frozenset(range(1, 7))) + text(
        "p", "At most: by how much a step were faster if these took no time at all.", class_="note"
    )


def _operators(found: Diagnosis) -> str:
    dearest = sorted(found.seen.operators, key=lambda one: -one.seconds)[:OPERATORS]
    rows = [
        (
            text("code", one.name), text("span", shapes(one.shapes)),
            text("span", one.layer), text("span", one.phase), f"{one.calls:.0f}",
            milliseconds(one.seconds),
            rate(one.flops_per_s, "FLOP/s") if one.flops and one.seconds else "",
            rate(one.bytes_per_s, "B/s") if one.bytes and one.seconds else "",
            operator_share(one, found.roof, found.seen.threads),
        )
        for one in dearest
    ]  # fmt: skip
    head = ("operator", "shapes", "in", "", "calls", "time", "computes", "moves", "of the roof")
    count = len(dearest)
    return element(
        "details",
        text("summary", f"the {count} dearest of {len(found.seen.operators)}"),
        table(head, rows, numbers=frozenset(range(4, 9))),
    )


def _footer(found: Diagnosis) -> str:
    return text(
        "footer",
        f"cputrain {found.cputrain}. Times are medians of steps as they are; operators were timed "
        "one by one in steps behind those. The machine's best was measured through torch"
        + (", and is rough." if found.roof.rough else "."),
    )
