"""The manual says what the program does."""

from __future__ import annotations

import tomllib
from pathlib import Path

from cputrain.launch import man_page
from cputrain.settings.core.registry import SETTINGS, USER_SETTINGS

ROOT = Path(__file__).parents[2]


def test_every_setting_is_in_the_manual_as_the_help_has_it() -> None:
    """A row for each, no more and no less."""
    rows = [
        line
        for line in (ROOT / "docs/guide/settings.md").read_text().splitlines()
        if "| `--" in line
    ]
    assert rows == [
        f"| `{setting.flag}` | {setting.takes.replace('|', ', ')} | {setting.help} |"
        for setting in USER_SETTINGS.values()
    ]


def test_the_man_page_has_every_option() -> None:
    """`python -m cputrain.launch.man_page > docs/cputrain.1` writes it anew."""
    assert (ROOT / "docs/cputrain.1").read_text() == man_page.page()


def test_every_decision_is_explained_in_the_manual() -> None:
    """The page on plans has a row for each setting, in the order of a plan."""
    page = (ROOT / "docs/guide/plan.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert rows[2:] == [name.replace("_", " ") for name in SETTINGS]


def test_every_package_is_installed() -> None:
    """A folder that is not listed would be missing from the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {
        "cputrain." + ".".join(path.parent.relative_to(ROOT).parts)
        if top == "launch"
        else ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("cputrain", "launch")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == folders


def test_every_package_has_a_readme() -> None:
    """Its tree, the life of a value through it, and where to extend it."""
    for folder in ("machine", "plan", "settings", "runtime", "notebook", "report", "bench"):
        assert (ROOT / "cputrain" / folder / "README.md").exists(), folder
    assert (ROOT / "launch/README.md").exists()
