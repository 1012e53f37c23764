"""Search a diagnosis for physically impossible figures: in its JSON, text and HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ROUNDING = 1 + 1e-6
"""Factor by which a rate may exceed its bound through rounding."""

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

OF_ROOF = re.compile(rf"{NUMBER} ([kMGT]?)(FLOP/s|B/s) of {NUMBER}(?: ([kMGT]?)(?:FLOP/s|B/s))?")
"""Rate beside its roof: "12.3 GFLOP/s of 78.9 GFLOP/s", or "12.3 GFLOP/s of 78.9"."""

PERCENT = re.compile(rf"{NUMBER} ?%")

LEVELS = ("memory", "l3", "l2")
"""Levels of the memory hierarchy, slowest first."""


def impossible_figures(document: dict[str, Any], *texts: str) -> list[str]:
    """Return the impossible figures in a diagnosis document and in its renderings."""
    figures = [*_of_roof(document["roof"]), *_of_operators(document), *_of_findings(document)]
    for text in texts:
        figures += _in_text(text)
    return figures


def text_of_page(page: str) -> str:
    """Return the text of an HTML page, including its tooltips."""
    reader = _Text()
    reader.feed(page)
    reader.close()
    return "\n".join(reader.lines)


class _Text(HTMLParser):
    """HTML parser that collects text and tooltips, without scripts and style sheets."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in {"style", "script"}
        self.lines += [value for name, value in attrs if name == "data-tip" and value]

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in {"style", "script"}

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.lines.append(data)


def _of_roof(roof: dict[str, Any]) -> Iterator[str]:
    """Yield roofs that fall with more threads, and memory levels faster than the next."""
    for table in ("flops_per_s", "bandwidth_bytes_per_s", "streaming_bytes_per_s"):
        for name, rates in roof.get(table, {}).items():
            in_order = [rates[threads] for threads in sorted(rates, key=int)]
            if any(rate_more < rate_fewer for rate_fewer, rate_more in pairwise(in_order)):
                yield f"the roof of {name} is lower with more threads: {rates}"
    for slower, faster in pairwise(LEVELS):
        tables = [roof["bandwidth_bytes_per_s"][level] for level in (slower, faster)]
        if max(tables[0].values()) > max(tables[1].values()):
            yield f"{slower} is faster than {faster}"


def _of_operators(document: dict[str, Any]) -> Iterator[str]:
    """Yield operators whose rate exceeds the roof, or that take no time."""
    seen, roof = document["seen"], document["roof"]
    threads = seen["threads"]

    def rate_bound(rates: dict[str, float]) -> float:
        """Return the rate at the next measured thread count, an upper bound for fewer threads."""
        measured_counts = [int(count) for count in rates if int(count) >= threads]
        return rates[str(min(measured_counts, default=max(map(int, rates))))]

    for operator in seen["operators"]:
        if not operator["seconds"]:
            if operator["flops"]:
                yield f"{operator['name']} has operations but takes no time"
            continue
        name = operator.get("computed_in") or operator["dtype"]
        table = roof["flops_per_s"]
        max_flops = max(rate_bound(table["float32"]), rate_bound(table.get(name, table["float32"])))
        if operator["flops"] > ROUNDING * max_flops * operator["seconds"]:
            yield f"{operator['name']} exceeds the roof of {name}"
        max_bytes = rate_bound(roof["bandwidth_bytes_per_s"]["l2"])
        if operator["bytes"] > ROUNDING * max_bytes * operator["seconds"]:
            yield f"{operator['name']} exceeds the roof of the caches"


def _of_findings(document: dict[str, Any]) -> Iterator[str]:
    """Yield findings that save more than a step, and layers that take more than a step."""
    step = document["seen"]["step"]
    for finding in document["findings"]:
        if not 0 <= finding["lost_seconds"] < step or finding["speedup"] < 1:
            yield f"{finding['title']} saves {finding['lost_seconds']} s of {step} s"
    for layer in document["layers"]:
        if not 0 <= layer["share"] <= ROUNDING or layer["cumulated"] > ROUNDING:
            yield f"{layer['kind']} takes {layer['share']:.0%} of a step"


def _in_text(text: str) -> Iterator[str]:
    """Yield percentages outside of 0 to 100, and rates above the roof beside them."""
    # undo line wrapping
    text = " ".join(text.split())
    for match in PERCENT.finditer(text):
        if not 0 <= float(match[1]) <= 100:
            yield f"{match[0]}: {text[max(0, match.start() - 60) : match.end() + 20]}"
    for match in OF_ROOF.finditer(text):
        rate, prefix, _, roof, roof_prefix = match.groups()
        factor = PREFIXES[prefix if roof_prefix is None else roof_prefix]
        if float(rate) * PREFIXES[prefix] > float(roof) * factor * 1.005:
            yield match[0]
