"""Pictures are those that their commands draw."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures.__main__ import NAMES

PICTURES = Path(__file__).parents[2] / "docs/pictures"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_drawn_from_todays_data(name: str) -> None:
    """`python -m docs.pictures` draws them anew."""
    assert (PICTURES / f"{name}.svg").read_text() == import_module(
        f"docs.pictures.{name}"
    ).picture()


@pytest.mark.parametrize("name", [*NAMES, "terminal"])
def test_a_picture_has_a_title_for_those_who_cannot_see_it(name: str) -> None:
    root = ElementTree.fromstring((PICTURES / f"{name}.svg").read_text())
    assert root.attrib["role"] == "img"
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert len((title.text or "").split()) > 3
