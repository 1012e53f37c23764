"""Cells as scripts: what only IPython could run is left out, the rest does what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from cputrain.errors import UsageError
from cputrain.notebook.cells import make_script
from tests.launch.programs import plain, script


def made_of(*cells: str) -> tuple[str, list[str]]:
    return make_script(TransformerManager(), cells)


CELLS = (
    "%matplotlib inline\n!echo never\nanswer = 41\nprint(answer)",
    "%%time\nanswer += 1\nprint('timed', answer)",
    "%time answer += 1\nprint(answer)",
    "files = !printf 'a\\nb'\nprint(files)",
    "%env WORD=said\nimport os\nprint(os.environ['WORD'])",
    "if answer:\n    !echo never\nprint('after')",
    "value = %some_magic\nprint(value)",
    "answer?",
    "%%bash\necho never",
    "display(answer)\nprint(get_ipython() is None)",
    "%cd /\nprint(os.getcwd())",
    "async def later():\n    return 1\nprint('__file__' in globals())",
)


def test_a_script_of_cells_does_what_the_cells_did(tmp_path: Path) -> None:
    text, left_out = made_of(*CELLS)
    done = plain(tmp_path, str(script(tmp_path, text)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "41", "timed 42", "43", "['a', 'b']", "said", "after", "None", "True", "/", "False",
    ]  # fmt: skip
    assert left_out == [
        "%matplotlib inline", "!echo never", "!echo never", "%some_magic", "%pinfo answer",
        "%%bash",
    ]  # fmt: skip


def test_it_finds_modules_where_the_notebook_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    script(beside, "print('found')", "mine.py")
    monkeypatch.chdir(beside)
    monkeypatch.syspath_prepend("")
    text, _ = made_of("import mine")
    assert plain(tmp_path, str(script(tmp_path, text))).stdout == "found\n"


@pytest.mark.parametrize("cell", ["if:", "await later()", "%%time\nif:"])
def test_what_is_no_script_is_told(cell: str) -> None:
    with pytest.raises(UsageError, match="the cell must be Python that runs as a script"):
        compile(made_of(cell)[0], "cell", "exec")
