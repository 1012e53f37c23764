"""Convert cells of a notebook to a script.

Magics and shell commands that only IPython can run are left out (`%matplotlib inline`,
`!pip install`); those that contain code or have a Python equivalent are replaced by it
(`%time train()`, `files = !ls`). The script has the notebook's `sys.path` and no `__file__`.
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

CODE_LINE_MAGICS = frozenset({"time", "prun", "memit"})
"""Line magics that run the code in their line, which is kept."""

CODE_CELL_MAGICS = frozenset({"time", "capture", "prun"})
"""Cell magics that run the code of their cell, which is kept."""

SCRIPT_HEADER = """\
import sys
sys.path[:] = {path!r}
del sys, __file__
def display(*_, **__):
    pass
def get_ipython():
    pass
"""


def make_script(shell: Any, cells: Sequence[str]) -> tuple[str, list[str]]:
    """Convert cells to a script.

    Args:
        shell: IPython's shell, or its transformer of cells.
        cells: Sources of the cells, in the order in which they run.

    Returns:
        The script, and the source lines that were left out.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    replacer = _ShellCallReplacer(shell)
    parts = [ast.unparse(replacer.visit(_parse(shell, cell))) for cell in cells]
    return "\n".join([SCRIPT_HEADER.format(path=path), *parts, ""]), replacer.left_out


def earlier_inputs(shell: Any, ranges: str) -> str:
    """Return the sources of earlier cells by their numbers, as %history takes them: 1-4, or 2:5 7.

    Raises:
        UsageError: There are no such cells.
    """
    text = str(shell.extract_input_lines(ranges.replace(",", " "), raw=True))
    if not text.strip():
        raise UsageError(
            "--cells",
            "must name earlier inputs by their numbers, as %history does",
            found=repr(ranges),
            do="Say for example --cells 1-4; the numbers stand beside the cells.",
        )
    return text


def _parse(shell: Any, cell: str) -> ast.Module:
    """Transform a cell as IPython does, and parse it; magics become calls of `get_ipython()`."""
    try:
        text = str(shell.transform_cell(cell))
        compile(text, "the cell", "exec")  # finds errors that parsing does not
        return ast.parse(text, "the cell")
    except SyntaxError as error:
        raise UsageError(
            "the cell",
            "must be Python that runs as a script",
            found=f"{error.msg} in line {error.lineno}",
            do="Run the cell by itself to see more.",
        ) from None


class _ShellCallReplacer(ast.NodeTransformer):
    """Transformer that replaces or removes the calls that magics and `!` were transformed to."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.left_out: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> Any:
        words = _shell_call(node.value)
        if words is None:
            return self.generic_visit(node)
        statements = self._replacement(words)
        return statements or ast.Pass()

    def visit_Call(self, node: ast.Call) -> Any:
        words = _shell_call(node)
        if words is None:
            return self.generic_visit(node)
        if words[0] == "getoutput":  # files = !ls
            code = f"__import__('subprocess').getoutput({words[1]!r}).splitlines()"
            return ast.parse(code, mode="eval").body
        self.left_out.append(_source_text(words))
        return ast.Constant(None)

    def _replacement(self, words: list[str]) -> list[ast.stmt]:
        """Return the statements that do what a shell call does; none if only IPython can do it."""
        kind, name, rest = words[0], words[1], words[2:]
        if kind == "run_line_magic" and rest:
            if name in CODE_LINE_MAGICS:
                return self._statements(rest[0])
            if name == "cd":
                return self._statements(f"__import__('os').chdir({os.path.expanduser(rest[0])!r})")
            if name in ("env", "set_env") and _name_and_value(rest[0]):
                variable, value = _name_and_value(rest[0])
                return self._statements(f"__import__('os').environ[{variable!r}] = {value!r}")
        if kind == "run_cell_magic" and name in CODE_CELL_MAGICS:
            return self._statements(rest[-1])
        self.left_out.append(_source_text(words))
        return []

    def _statements(self, text: str) -> list[ast.stmt]:
        module: ast.Module = self.visit(_parse(self._shell, text))
        return module.body


def _shell_call(node: ast.expr) -> list[str] | None:
    """Return method and arguments of a call like get_ipython().system('ls'); None for another."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    shell = node.func.value
    if not isinstance(shell, ast.Call) or not isinstance(shell.func, ast.Name):
        return None
    if shell.func.id != "get_ipython":
        return None
    words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    return [node.func.attr, *map(str, words)] if words else None


def _name_and_value(text: str) -> tuple[str, ...]:
    """Split the argument of %env, "A=B" or "A B"; empty if there is no value."""
    name, sign, value = text.partition("=" if "=" in text else " ")
    return (name.strip(), value.strip()) if sign else ()


def _source_text(words: Sequence[str]) -> str:
    """Return the magic or shell command that was transformed to this call, as it was typed."""
    kind, *rest = words
    if kind.startswith("run_"):
        sign = "%%" if kind == "run_cell_magic" else "%"
        return f"{sign}{' '.join(rest[:2])}".strip()
    return f"!{rest[0]}"
