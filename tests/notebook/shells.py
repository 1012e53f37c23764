"""A real IPython, and a real notebook's kernel, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.launch.programs import PYTHON, run

SHELL = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
answers = []
for text in json.load(sys.stdin):
    with capture_output(display=False) as said:
        done = shell.run_cell(text, store_history=True)
    shown = {} if done.result is None else shell.display_formatter.format(done.result)[0]
    answers.append({
        "out": said.stdout, "err": said.stderr, "ok": done.success,
        "text": shown.get("text/plain", ""), "html": shown.get("text/html", ""),
    })
with open("answers.json", "w") as file:
    json.dump(answers, file)
"""

KERNEL = """
import json, sys
import nbclient, nbformat

cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=100, kernel_name="python3", allow_errors=True).execute()
answers = []
for cell in book.cells:
    answer = {"out": "", "err": "", "ok": True, "text": "", "html": ""}
    for one in cell.outputs:
        if one.output_type == "stream":
            answer["out" if one.name == "stdout" else "err"] += one.text
        elif one.output_type == "error":
            answer["err"] += "\\n".join(one.traceback)
            answer["ok"] = False
        else:
            answer["text"] += one.data.get("text/plain", "")
            answer["html"] += one.data.get("text/html", "")
    answers.append(answer)
with open("answers.json", "w") as file:
    json.dump(answers, file)
"""


class Answer(NamedTuple):
    """What a cell came to."""

    out: str
    err: str
    ok: bool
    text: str
    html: str


def _asked(folder: Path, driver: str, cells: tuple[str, ...], before: tuple[str, ...],
           **changes: str) -> list[Answer]:  # fmt: skip
    where = folder / "driver.py"
    where.write_text(driver)
    done = run((*before, PYTHON, str(where)), folder, stdin=json.dumps(cells), **changes)
    assert done.returncode == 0, done.stderr
    return [Answer(**one) for one in json.loads((folder / "answers.json").read_text())]


def in_shell(folder: Path, *cells: str, **changes: str) -> list[Answer]:
    """Cells in an IPython shell, one after the other."""
    return _asked(folder, SHELL, cells, (), IPYTHONDIR=str(folder / "ipython"), **changes)


def in_notebook(
    folder: Path, *cells: str, before: tuple[str, ...] = (), **changes: str
) -> list[Answer]:
    """Cells of a notebook, executed by a kernel; `before` is what the server is started with."""
    return _asked(folder, KERNEL, cells, before, IPYTHONDIR=str(folder / "ipython"), **changes)
