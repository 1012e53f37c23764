"""The HTML page of a diagnosis: in a browser, in print, in dark mode, for every machine."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from cputrain.report.page import diagnosis_page
from tests.diagnose.samples import diagnosis, finding
from tests.report.browser import CHROMIUM, Browser

MACHINES = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))

EVIL = "<script>alert('\"&')</script>"

SIZES = ((360, 740), (820, 1180), (1440, 900))
"""Screens of a phone, a tablet and a desktop."""

LOW_CONTRAST = """
(() => {
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((value) => {
      const c = value / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
  };
  const faint = [];
  for (const element of document.querySelectorAll("main *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [luminance(ink), luminance(background(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(element.textContent.slice(0, 40));
  }
  return faint;
})()
"""
"""Texts with a contrast below 4.5 to 1 (WCAG AA)."""

OUTSIDE = """
[...document.querySelectorAll(".roofline circle, .roofline line, .line rect")].filter((mark) => {
  const [a, b] = [mark, mark.closest("svg")].map((box) => box.getBoundingClientRect());
  const room = mark.tagName === "circle" ? a.width / 2 + 1 : 1;
  return a.left < b.left - room || a.right > b.right + room
      || a.top < b.top - room || a.bottom > b.bottom + room;
}).length
"""
"""Number of marks outside of their chart."""


class Reader(HTMLParser):
    """Collects text; fails on external resources, inline handlers and wrong nesting."""

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
def test_the_page_has_every_text_and_escapes_it(path):
    shown = diagnosis(machine(path), name=EVIL)
    page = diagnosis_page(shown)
    text = Reader(page).text
    assert EVIL in text
    assert EVIL not in page
    assert page.count("<script>") == 1
    for part in ("2.00×", "1.80×", "fewer bits", "the optimizer", f"own::{EVIL}", "Conv2d",
                 shown.box.name):  # fmt: skip
        assert part in text
    cores = sum(len(domain.cores) for socket in shown.box.sockets for domain in socket.domains)
    assert cores == len(machine(path).topology.cores)
    assert page.count('<i class="core') == cores
    assert f"{shown.box.reasons[0]}" in text


def test_a_page_without_findings_says_so(tmp_path):
    shown = diagnosis(machine(MACHINES[0])).replace(findings=(), applied=())
    text = Reader(diagnosis_page(shown)).text
    assert "Nothing worth doing was found" in text
    assert "Tried" not in text


def test_small_layers_are_folded():
    shown = diagnosis(machine(MACHINES[0]))
    large = shown.layers[0]
    small = [large.replace(kind=f"Small{number}", share=0.004) for number in range(3)]
    folded = diagnosis_page(shown.replace(layers=(large, *small)))
    open_part, _, rest = folded.partition("3 with less than 0.5 % of a step each")
    assert "Small0" not in open_part
    assert "Small2" in rest
    assert "with less than" not in diagnosis_page(shown)


def test_all_remedies_have_a_line_of_their_own():
    shown = diagnosis(machine(MACHINES[0]))
    assert f"at best {shown.speedup_of_all:.2f}×" in diagnosis_page(shown)
    one = shown.replace(findings=shown.findings[:1])
    assert "With all remedies" not in diagnosis_page(one)


needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    two_sockets = next(path for path in MACHINES if "7451" in path.name)
    path.write_text(diagnosis_page(diagnosis(machine(two_sockets), name=EVIL)))
    return path


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_page_fits_and_is_readable(browser, page, width, height, dark):
    browser.open(page, width=width, height=height, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(LOW_CONTRAST) == []
    assert browser.value(OUTSIDE) == 0
    light = browser.value("getComputedStyle(document.documentElement).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", light))) < 60) == dark
    assert browser.messages == []


@needs_chromium
def test_marks_have_tooltips(browser, page):
    browser.open(page, width=1440, height=900)
    hidden = "document.querySelector('.tip').hidden"
    assert browser.value(hidden)
    marks = browser.value("document.querySelectorAll('[data-tip]').length")
    assert marks > 50
    for kind, says in ((".roofline .backward", "convolution_backward"), (".core", "CPU"),
                       (".line .forward", EVIL), (".bar.wait", "loader")):  # fmt: skip
        at = browser.value(
            f"(() => {{ const mark = document.querySelector({kind!r}); "
            "mark.scrollIntoView({block: 'center'}); const box = mark.getBoundingClientRect(); "
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
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
    assert browser.messages == []


@needs_chromium
def test_a_remedy_that_is_an_option_can_be_copied(browser, tmp_path):
    shown = diagnosis(machine(MACHINES[0]), name="my train.py")
    options = {"fused_optimizer": "on", "threads": "2"}
    findings = (finding("options", settings=options), finding("code", settings=None))
    path = tmp_path / "page.html"
    path.write_text(diagnosis_page(shown.replace(findings=findings)))
    browser.open(path, width=820, height=1180)
    command = "cputrain launch --fused-optimizer on --threads 2 'my train.py'"
    assert browser.value("[...document.querySelectorAll('.copy')].map(b => b.hidden)") == [False]
    assert browser.value("document.querySelector('.copy').dataset.copy") == command
    browser.value("navigator.clipboard.writeText = async text => { window.copied = text }; 0")
    browser.value("document.querySelector('.copy').click()")
    assert browser.value("window.copied") == command


@needs_chromium
def test_what_a_layer_takes_is_on_the_screen_of_a_phone(browser, page):
    browser.open(page, width=390, height=844)
    right = browser.value(
        "Math.max(...[...document.querySelectorAll('.layers th')].filter(cell => "
        "['forward', 'backward'].includes(cell.textContent))"
        ".map(cell => cell.getBoundingClientRect().right))"
    )
    assert 0 < right <= 390


@needs_chromium
def test_a_screenshot_has_every_color(browser, page, tmp_path):
    browser.open(page, width=820, height=1180)
    browser.picture(tmp_path / "page.png")
    shown = browser.value(
        "['wait', 'forward', 'backward', 'optimizer'].map((name) => "
        "getComputedStyle(document.querySelector('.bar.' + name)).backgroundColor)"
    )
    assert len(set(shown)) == 4
    assert len((tmp_path / "page.png").read_bytes()) > 30_000


@needs_chromium
def test_collapsed_sections_are_printed(browser, page, tmp_path):
    browser.open(page, width=820, height=1180)
    assert not browser.value("document.querySelector('details').open")
    browser.printed(tmp_path / "page.pdf")
    assert browser.value("document.querySelector('details').open")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert browser.messages == []
