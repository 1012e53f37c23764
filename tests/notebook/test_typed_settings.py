"""Editors and type checkers know the settings of `cputrain.setup`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
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


CALLS = {
    "setup(threads=4, channels_last='on', compile=True, placement=[0, 1])": "",
    "setup(threds=4)": "threds",
    "setup(precision='bf61')": "bf61",
    "setup(threads='many')": "many",
    "DataLoader([1], batch_size='one')": "batch_size",
    "Pool(processes='two')": "processes",
    "Split(3)": "Split",
    "Step(3, print, 4)": "Step",
    "fill(1, print, chnk=2)": "chnk",
}
"""Calls, and a word of the error that a type checker has for them."""


@pytest.mark.long  # the checker reads all of torch
def test_a_mistake_is_an_error_of_types(tmp_path: Path) -> None:
    path = tmp_path / "use.py"
    path.write_text(
        "\n".join(["from cputrain import DataLoader, Pool, Split, Step, fill, setup", *CALLS])
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300,
    )  # fmt: skip
    errors: dict[int, str] = defaultdict(str)
    for line in done.stdout.splitlines():
        if found := re.match(r".*use\.py:(\d+): (?:error|note): (.*)", line):
            errors[int(found[1])] += found[2]
    for number, (call, word) in enumerate(CALLS.items(), 2):
        assert (number in errors) == bool(word), (call, errors[number])
        assert word in errors[number], call


JEDI = """
import jedi
names = {found.name for found in jedi.Script("import cputrain\\ncputrain.").complete(2, 9)}
for name in ("DataLoader", "Pool", "Split", "Step", "fill", "setup"):
    call = f"cputrain.{name}("
    (signature, *_) = jedi.Script("import cputrain\\n" + call).get_signatures(2, len(call))
    print(name, name in names, len(signature.params) > 0, len(signature.docstring()) > 100)
"""


def test_an_editor_completes_public_names_and_shows_their_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JEDI], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all(line.split()[1:] == ["True"] * 3 for line in lines), done.stdout
