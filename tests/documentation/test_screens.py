"""The manual on screens, phones and paper: it fits, everybody can read it, nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from cputrain.report.page import diagnosis_page
from tests.diagnose.samples import diagnosis
from tests.documentation.test_reading import SOUGHT
from tests.report.browser import CHROMIUM, Browser
from tests.selected import cases

ROOT = Path(__file__).parents[2]

AXE = "axe-core@4.14.1"

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs-material: make docs"),
]

PAGES = (
    "index.html", "tutorials/first_steps.html", "benchmarks/launch.html", "guide/settings.html",
    "reference/commands.html", "help/troubleshooting.html", "diagnosis.html",
)  # fmt: skip

SHORT = ("index.html", "diagnosis.html")
"""Pages that `make test` opens."""

SIZES = ((1300, 900), (390, 844))
"""A small laptop, and a phone."""

SERIOUS = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => one.id + ": " + one.nodes.map((node) => node.html).slice(0, 3).join(" ")))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual as pages, with the page of a diagnosis."""
    folder = tmp_path_factory.mktemp("manual") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    capture = read_capture(str(ROOT / "tests/machines/x86_64-epyc_7451.json"))
    (folder / "diagnosis.html").write_text(diagnosis_page(diagnosis(read_machine(capture))))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The rules for accessible pages, as a script."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def open_in(browser: Browser, path: Path, *, dark: bool) -> None:
    """Open a page, light or dark, whatever was chosen on an earlier one."""
    browser.open(path, width=1300, height=900, dark=dark)
    browser.value("localStorage.clear()")
    browser.open(path, width=1300, height=900, dark=dark)
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    if path.name != "diagnosis.html":  # its background is the root's
        assert (max(map(int, re.findall(r"\d+", background)[:3])) < 80) == dark


@pytest.mark.parametrize("name", cases(PAGES, SHORT))
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_page_fits_its_screen_and_fetches_nothing(
    browser: Browser, site: Path, name: str, width: int, height: int
) -> None:
    browser.messages.clear()
    browser.open(site / name, width=width, height=height)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert [message for message in browser.messages if "requested" in message] == []


@pytest.mark.parametrize("name", cases(PAGES, SHORT))
@pytest.mark.parametrize("dark", [False, True])
def test_everybody_can_read_a_page(
    browser: Browser, site: Path, axe: str, name: str, dark: bool
) -> None:
    open_in(browser, site / name, dark=dark)
    browser.value(axe + "; 0")
    assert browser.value(SERIOUS) == []


BENCHMARKS = sorted(path.stem for path in (ROOT / "docs/benchmarks").glob("*.md"))

HIDDEN = """
[...document.querySelectorAll(".md-typeset__scrollwrap")].flatMap((wrap) =>
  [...wrap.querySelectorAll("th")].filter((cell) => cell.textContent.includes("speed-up")
    && cell.getBoundingClientRect().right > wrap.getBoundingClientRect().right + 1)
    .map((cell) => cell.textContent))
"""
"""Headings of speed-ups that one must scroll to."""


@pytest.mark.parametrize("name", cases(BENCHMARKS, ["launch"]))
def test_speed_ups_are_on_the_screen(browser: Browser, site: Path, name: str) -> None:
    browser.open(site / f"benchmarks/{name}.html", width=1300, height=900)
    assert browser.value(HIDDEN) == []


SEARCH = """
(() => {{
  const input = document.querySelector("[data-md-component=search-query]");
  input.focus();
  input.value = {words};
  for (const name of ["focus", "keyup", "input", "change"])
    input.dispatchEvent(new Event(name, {{bubbles: true}}));
}})()
"""


def test_what_people_look_for_is_found_without_a_server(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html", width=1300, height=900)
    for words in SOUGHT:
        browser.value(SEARCH.format(words=json.dumps("zzzz")))
        until(browser, "document.querySelectorAll('.md-search-result__item').length == 0")
        browser.value(SEARCH.format(words=json.dumps(words)))
        until(browser, "document.querySelectorAll('.md-search-result__item').length > 0")


def until(browser: Browser, condition: str) -> None:
    """Wait for a condition of the page."""
    end = time.monotonic() + 20
    while not browser.value(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def test_a_page_is_printed(browser: Browser, site: Path, tmp_path: Path) -> None:
    browser.open(site / "index.html", width=820, height=1180)
    browser.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


class Article(HTMLParser):
    """The text of a page's article, and the links of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.links: set[str] = set()
        self._is_inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_inside |= tag == "article"
        if tag == "a":
            self.links.add(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside &= tag != "article"

    def handle_data(self, data: str) -> None:
        self.text += data * self._is_inside


def test_pages_need_no_javascript(site: Path) -> None:
    """What they say, and the way to every other page, is in the HTML."""
    for name in PAGES[:-1]:
        article = Article((site / name).read_text())
        assert len(article.text.split()) > 100, name
        assert any("install.html" in link for link in article.links), name
