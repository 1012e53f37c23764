"""The page of a diagnosis, in a browser: on a phone, on paper, in the dark, on every machine."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from cputrain.report.page import diagnosis_page
from tests.diagnose.samples import diagnosis
from tests.report.browser import FOUND, Browser

MACHINES = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))

EVIL = "<script>alert('\"&')</script>"

SIZES = ((360, 740), (820, 1180), (1440, 900))
"""A phone, a tablet, a desk."""

FAINT = """
(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
  };
  const faint = [];
  for (const one of document.querySelectorAll("main *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !one.checkVisibility()) continue;
    const style = getComputedStyle(one);
    const ink = one.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(one.textContent.slice(0, 40));
  }
  return faint;
})()
"""
"""Texts that stand out from what is behind them by less than people are promised (4.5 to 1)."""

OUTSIDE = """
[...document.querySelectorAll(".roofline circle, .roofline line, .line rect")].filter((one) => {
  const [a, b] = [one, one.closest("svg")].map((each) => each.getBoundingClientRect());
  const room = one.tagName === "circle" ? a.width / 2 + 1 : 1;
  return a.left < b.left - room || a.right > b.right + room
      || a.top < b.top - room || a.bottom > b.bottom + room;
}).length
"""
"""Marks that are beyond their chart."""


class Reader(HTMLParser):
    """Text, and what would be taken from elsewhere; fails where elements are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} & {"src", "onclick", "onerror", "srcset"}
        for name, value in attrs:
            assert name != "href" or value == "data:,"
        if tag not in {"meta", "link"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in {"style", "script"}:
            self.text += data + "\n"


def machine(path: Path):
    return read_machine(read_capture(str(path)))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_everything_is_on_the_page_and_escaped(path):
    found = diagnosis(machine(path), name=EVIL)
    page = diagnosis_page(found)
    text = Reader(page).text
    assert EVIL in text
    assert EVIL not in page
    assert page.count("<script>") == 1
    for part in ("2.00×", "1.80×", "fewer bits", "the optimizer", f"own::{EVIL}", "Conv2d",
                 found.box.name):  # fmt: skip
        assert part in text
    cores = sum(len(domain.cores) for one in found.box.sockets for domain in one.domains)
    assert cores == len(machine(path).topology.cores)
    assert page.count('<i class="core') == cores
    assert f"{found.box.reasons[0]}" in text


def test_nothing_worth_doing_is_said(tmp_path):
    found = diagnosis(machine(MACHINES[0])).replace(findings=(), applied=())
    text = Reader(diagnosis_page(found)).text
    assert "Nothing worth doing was found" in text
    assert "Tried" not in text


needs_chromium = pytest.mark.skipif(not FOUND, reason="needs Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    two_sockets = next(one for one in MACHINES if "7451" in one.name)
    path.write_text(diagnosis_page(diagnosis(machine(two_sockets), name=EVIL)))
    return path


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_and_can_be_read(browser, page, width, height, dark):
    browser.open(page, width=width, height=height, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(FAINT) == []
    assert browser.value(OUTSIDE) == 0
    light = browser.value("getComputedStyle(document.documentElement).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", light))) < 60) == dark
    assert browser.said == []


@needs_chromium
def test_a_mark_tells_what_it_stands_for(browser, page):
    browser.open(page, width=1440, height=900)
    hidden = "document.querySelector('.tip').hidden"
    assert browser.value(hidden)
    marks = browser.value("document.querySelectorAll('[data-tip]').length")
    assert marks > 50
    for kind, says in ((".roofline .backward", "convolution_backward"), (".core", "CPU"),
                       (".line .forward", EVIL), (".bar.wait", "loader")):  # fmt: skip
        at = browser.value(
            f"(() => {{ const one = document.querySelector({kind!r}); "
            "one.scrollIntoView({block: 'center'}); const at = one.getBoundingClientRect(); "
            "return [at.left + at.width / 2, at.top + at.height / 2]; })()"
        )
        browser.point(*at)
        assert not browser.value(hidden)
        assert says in browser.value("document.querySelector('.tip').textContent")
        inside = (
            "(() => { const at = document.querySelector('.tip').getBoundingClientRect(); return "
            "at.left >= 0 && at.top >= 0 && at.right <= innerWidth && at.bottom <= innerHeight })()"
        )
        assert browser.value(inside)
    browser.point(2, 2)
    assert browser.value(hidden)
    assert browser.said == []


@needs_chromium
def test_a_picture_of_it_has_every_colour(browser, page, tmp_path):
    """Charts are drawn, not only there."""
    browser.open(page, width=820, height=1180)
    browser.picture(tmp_path / "page.png")
    shown = browser.value(
        "['wait', 'forward', 'backward', 'optimizer'].map((one) => "
        "getComputedStyle(document.querySelector('.bar.' + one)).backgroundColor)"
    )
    assert len(set(shown)) == 4
    assert len((tmp_path / "page.png").read_bytes()) > 30_000


@needs_chromium
def test_on_paper_nothing_is_folded(browser, page, tmp_path):
    browser.open(page, width=820, height=1180)
    assert not browser.value("document.querySelector('details').open")
    browser.printed(tmp_path / "page.pdf")
    assert browser.value("document.querySelector('details').open")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert browser.said == []
