"""Cells of a notebook as a script of their own.

What belongs to IPython alone is left out of it (`%matplotlib inline`, `!pip install`), and what it
would have run is put in its place (`%time train()`, `files = !ls`). The script finds modules where
the notebook finds them, and has no `__file__`, as a notebook has none.
"""

from __future__ import annotations

import ast
import os
import sys

from cputrain.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

RUNS_LINE = frozenset({"time", "prun", "memit"})
RUNS_CELL = frozenset({"time", "capture", "prun"})
"""Magics whose code belongs to what the cell does."""

HEAD = """\
import sys
sys.path[:] = {path!r}
del sys, __file__
def display(*_, **__):
    pass
def get_ipython():
    pass
"""


def script_of(shell: Any, cells: Sequence[str]) -> tuple[str, list[str]]:
    """The script, and what was left out of it."""
    path = [os.path.abspath(entry) for entry in sys.path]
    body = _Plain(shell)
    parts = [ast.unparse(body.visit(_parsed(shell, cell))) for cell in cells]
    return "\n".join([HEAD.format(path=path), *parts, ""]), body.left_out


def earlier_inputs(shell: Any, ranges: str) -> str:
    """Inputs by their numbers, as %history takes them: 1-4, or 2:5 7."""
    text = str(shell.extract_input_lines(ranges.replace(",", " "), raw=True))
    if not text.strip():
        raise UsageError(
            "--cells",
            "must name earlier inputs by their numbers, as %history does",
            found=repr(ranges),
            do="Say for example --cells 1-4; the numbers stand beside the cells.",
        )
    return text


def _parsed(shell: Any, cell: str) -> ast.Module:
    try:
        text = str(shell.transform_cell(cell))
        compile(text, "the cell", "exec")  # which finds what parsing alone does not
        return ast.parse(text, "the cell")
    except SyntaxError as error:
        raise UsageError(
            "the cell",
            "must be Python that runs as a script",
            found=f"{error.msg} in line {error.lineno}",
            do="Run the cell by itself to see more.",
        ) from None


class _Plain(ast.NodeTransformer):
    """Takes IPython's own calls out of what its transformer made of a cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.left_out: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> Any:
        words = _words(node.value)
        if words is None:
            return self.generic_visit(node)
        inside = self._instead(words)
        return inside or ast.Pass()

    def visit_Call(self, node: ast.Call) -> Any:
        words = _words(node)
        if words is None:
            return self.generic_visit(node)
        if words[0] == "getoutput":  # files = !ls
            shown = f"__import__('subprocess').getoutput({words[1]!r}).splitlines()"
            return ast.parse(shown, mode="eval").body
        self.left_out.append(_typed(words))
        return ast.Constant(None)

    def _instead(self, words: list[str]) -> list[ast.stmt]:
        kind, name, rest = words[0], words[1], words[2:]
        if kind == "run_line_magic" and rest:
            if name in RUNS_LINE:
                return self._code(rest[0])
            if name == "cd":
                return self._code(f"__import__('os').chdir({os.path.expanduser(rest[0])!r})")
            if name in ("env", "set_env") and _pair(rest[0]):
                variable, value = _pair(rest[0])
                return self._code(f"__import__('os').environ[{variable!r}] = {value!r}")
        if kind == "run_cell_magic" and name in RUNS_CELL:
            return self._code(rest[-1])
        self.left_out.append(_typed(words))
        return []

    def _code(self, text: str) -> list[ast.stmt]:
        made: ast.Module = self.visit(_parsed(self._shell, text))
        return made.body


def _words(node: ast.expr) -> list[str] | None:
    """Method and arguments of a call such as get_ipython().system('ls'); None for any other."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    shell = node.func.value
    if not isinstance(shell, ast.Call) or not isinstance(shell.func, ast.Name):
        return None
    if shell.func.id != "get_ipython":
        return None
    words = [one.value for one in node.args if isinstance(one, ast.Constant)]
    return [node.func.attr, *map(str, words)] if words else None


def _pair(text: str) -> tuple[str, ...]:
    """A=B or A B, as %env takes it."""
    name, sign, value = text.partition("=" if "=" in text else " ")
    return (name.strip(), value.strip()) if sign else ()


def _typed(words: Sequence[str]) -> str:
    """It, as it was typed."""
    kind, *rest = words
    if kind.startswith("run_"):
        sign = "%%" if kind == "run_cell_magic" else "%"
        return f"{sign}{' '.join(rest[:2])}".strip()
    return f"!{rest[0]}"
