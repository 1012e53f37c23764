"""Editors and type checkers know the settings of `cputrain.setup`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from cputrain.notebook.typed_settings import Settings
from cputrain.settings.core.registry import USER_SETTINGS

ROOT = Path(__file__).parents[2]


def test_every_setting_has_a_type_with_its_words() -> None:
    hints = get_type_hints(Settings)
    assert list(hints) == list(USER_SETTINGS)
    for name, setting in USER_SETTINGS.items():
        words = {word for word in setting.takes.split("|") if word.islower()}
        typed = re.findall(r"'(\w+)'", str(hints[name]))
        assert words == set(typed), name
        assert (int in get_args(hints[name])) == ("N" in setting.takes.split("|")), name


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("setup(threads=4, channels_last='on', compile=True, placement=[0, 1])", ""),
        ("setup(threds=4)", "threds"),
        ("setup(precision='bf61')", "bf61"),
        ("setup(threads='many')", "many"),
        ("DataLoader([1], batch_size='one')", "batch_size"),
        ("Pool(processes='two')", "processes"),
        ("Split(3)", "Split"),
        ("fill(1, print, chnk=2)", "chnk"),
    ],
)
def test_a_mistake_is_an_error_of_types(tmp_path: Path, call: str, error: str) -> None:
    path = tmp_path / "use.py"
    path.write_text(f"from cputrain import DataLoader, Pool, Split, fill, setup\n{call}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == bool(error), done.stdout
    assert error in done.stdout
