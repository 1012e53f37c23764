"""Faults that are planted in the rooms' functions: how many of them do the tests find?

`python tests/mutants/mutants.py draw` draws faults in the functions of the rooms, and
`python tests/mutants/mutants.py run CLONE` plants those of `mutants.json` in a clone of the project
that has its environment, and runs the tests there: each with the tests of its room, then those that
are left with all tests of `make test`, then with the long ones. Tests that take minutes are so run
once with all faults that are left, and what fails there is run again with each fault by itself.
The test that found a fault is written beside it; the next run tries it first.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

LIST = Path(__file__).with_name("mutants.json")

ROOMS = {
    "cputrain/split": 7, "cputrain/opencl": 7, "cputrain/runtime": 7, "cputrain/data": 6,
    "cputrain/pool": 6, "cputrain/ipc": 4, "cputrain/settings": 4, "cputrain/plan": 3,
    "cputrain/machine": 3, "launch": 3, "cputrain/diagnose": 3, "cputrain/tune": 2,
    "cputrain/measure": 2, "cputrain/ranks": 2, "cputrain/backends": 1,
}  # fmt: skip
"""How many faults are planted in the folder of each room."""

USERS = {
    "ipc": ("pool", "data"),
    "settings": ("plan", "backends", "launch", "runtime"),
    "runtime": ("launch", "diagnose", "tune"),
    "launch": ("ranks",),
    "machine": ("plan",),
    "plan": ("launch",),
}
"""Folders of tests of the rooms that use a room, which run after its own."""

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip

OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"), ast.Mod: ("%", "+"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip

CALLS = {"min": "max", "max": "min", "all": "any", "any": "all"}

SHORT, LONG = "not long", "long"
"""Marks of the tests of `make test`, and of those that `make test-all` has beside them."""


MOST_FAILED = 30
"""Faults of which more tests fail are planted in halves."""


class Fault(NamedTuple):
    """A text in a file, and what is there in its place."""

    path: str
    function: str
    line: int
    """Number of the line when the fault was drawn; lines may have been added above since."""
    column: int
    before: str
    after: str
    text: str
    """The line, without spaces at its ends."""
    found_by: str = ""
    """A test that has found the fault, with which a run begins."""


def faults(path: Path) -> Iterator[Fault]:
    """Yield every fault that could be planted in the functions of a file."""
    text = path.read_text()
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    name = str(path.relative_to(ROOT))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in _own_nodes(function):
                for line, column, before, after in _changes(node, lines):
                    whole = lines[line - 1].strip()
                    yield Fault(name, function.name, line, column, before, after, whole)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's statements, without those of functions and types in it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AnnAssign):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])], lines)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield from _between(node.left, node.right, *OPERATORS[type(node.op)], lines)
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _between(node.values[0], node.values[1], *words, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, node.col_offset, "not ", ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node.lineno, node.col_offset, str(node.value), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        before = ast.get_source_segment("".join(lines), node) or ""
        yield node.lineno, node.col_offset, before, str(node.value + 1)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLS:
        before = node.func.id  # type: ignore[attr-defined]
        yield node.lineno, node.col_offset, before, CALLS[before]
    elif isinstance(node, ast.If):
        test = node.test
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield test.lineno, test.col_offset, "", "not "


def _between(
    left: ast.expr, right: ast.expr, before: str, after: str, lines: list[str]
) -> Iterator[tuple[int, int, str, str]]:
    """Yield the operator between two expressions, if it is on a line with one of them."""
    line = left.end_lineno or 0
    start = left.end_col_offset or 0
    end = right.col_offset if right.lineno == line else None
    found = re.search(rf"(?<![<>=!*/]){re.escape(before)}(?![<>=*/])", lines[line - 1][start:end])
    if found:
        yield line, start + found.start(), before, after


def draw(seed: int) -> list[Fault]:
    """Draw faults, each in another function."""
    draws = random.Random(seed)
    drawn: list[Fault] = []
    for room, count in ROOMS.items():
        found = [fault for path in sorted((ROOT / room).rglob("*.py")) for fault in faults(path)]
        functions: dict[tuple[str, str], list[Fault]] = {}
        for fault in found:
            functions.setdefault((fault.path, fault.function), []).append(fault)
        for key in draws.sample(sorted(functions), count):
            drawn.append(draws.choice(functions[key]))
    return drawn


def planted(text: str, fault: Fault) -> str:
    """Return the text of a file with a fault."""
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.strip() == fault.text]
    if not places:
        raise ValueError(f"{fault.path}: there is no line {fault.text!r}")
    place = min(places, key=lambda number: abs(number + 1 - fault.line))
    line = lines[place]
    head, tail = line[: fault.column], line[fault.column :]
    if not tail.startswith(fault.before):
        raise ValueError(f"{fault.path}, line {place + 1}: there is no {fault.before!r}")
    lines[place] = head + fault.after + tail.removeprefix(fault.before)
    return "".join(lines)


def found_by_room(fault: Fault, clone: Path) -> str:
    """Return a test that finds a fault, of its room or of one that uses it, or ""."""
    if fault.found_by and _is_found_by(fault, fault.found_by, clone):
        return fault.found_by
    room = Path(fault.path).parts[0 if fault.path.startswith("launch") else 1]
    for folder in (room, *USERS.get(room, ())):
        with _with_faults([fault], clone):
            failed = _failed(clone, [f"tests/{folder}", "--maxfail", "5", "-m", SHORT])
        for test in failed:
            if _is_found_by(fault, test, clone):
                return test
    return ""


def found_together(faults: list[Fault], clone: Path, marks: str) -> dict[Fault, str]:
    """Return the tests that find faults, of all with these marks: run once with all faults."""
    with _with_faults(faults, clone):
        failed = _failed(clone, ["tests", "-m", marks])
    if len(failed) > MOST_FAILED and len(faults) > 1:
        middle = len(faults) // 2
        first, second = faults[:middle], faults[middle:]
        return found_together(first, clone, marks) | found_together(second, clone, marks)
    failed = [test for test in failed if not _failed(clone, [test])]
    found: dict[Fault, str] = {}
    for fault in faults:
        with _with_faults([fault], clone):
            test = next((test for test in failed if _failed(clone, [test])), None)
        if test:
            found[fault] = test
    return found


def _is_found_by(fault: Fault, test: str, clone: Path) -> bool:
    """Return whether a test passes without a fault, and fails with it."""
    if _failed(clone, [test]):
        return False
    with _with_faults([fault], clone):
        return bool(_failed(clone, [test]))


@contextmanager
def _with_faults(faults: list[Fault], clone: Path) -> Iterator[None]:
    paths = {fault.path for fault in faults}
    texts = {path: (clone / path).read_text() for path in paths}
    try:
        # from a line's end on, as a fault may move what is behind it
        for fault in sorted(faults, reverse=True, key=lambda fault: (fault.line, fault.column)):
            file = clone / fault.path
            file.write_text(planted(file.read_text(), fault))
        yield
    finally:
        for path, text in texts.items():
            (clone / path).write_text(text)


def _failed(clone: Path, words: list[str]) -> list[str]:
    """Return the tests that fail, in their order; the path if pytest ended without one."""
    done = subprocess.run(
        [".venv/bin/python", "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile",
         "--no-loadscope-reorder", "--tb=no", "-p", "no:cacheprovider", *words],
        cwd=clone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode in {0, 5}:
        return []
    told = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return told or words[:1]


def main() -> int:
    """Draw faults or plant them; print what found each."""
    parser = argparse.ArgumentParser(description=__doc__)
    words = parser.add_subparsers(dest="what", required=True)
    drawing = words.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    running = words.add_parser("run")
    running.add_argument("clone", type=Path)
    running.add_argument("--only", type=int, nargs="*", help="numbers of faults, from 0 on")
    running.add_argument("--together", action="store_true", help="leave the tests of the rooms out")
    given = parser.parse_args()
    if given.what == "draw":
        drawn = draw(given.seed)
        print(f"seed {given.seed}", file=sys.stderr)
        print(_as_text(drawn))
        return 0
    listed = [Fault(**one) for one in json.loads(LIST.read_text())]
    left = listed if given.only is None else [listed[number] for number in given.only]
    clone = given.clone.resolve()
    if not given.together:
        print("with the tests of the room:")
        left = _note(listed, left, ((fault, found_by_room(fault, clone)) for fault in left))
    for title, marks in (("all tests of `make test`", SHORT), ("the long ones too", LONG)):
        print(f"with {title}:")
        found = found_together(left, clone, marks) if left else {}
        left = _note(listed, left, ((fault, found.get(fault, "")) for fault in left))
    return 0


def _as_text(faults: list[Fault]) -> str:
    return "[\n" + ",\n".join(json.dumps(fault._asdict()) for fault in faults) + "\n]"


def _note(
    listed: list[Fault], faults: list[Fault], found: Iterator[tuple[Fault, str]]
) -> list[Fault]:
    """Print which tests found faults, and write them to the list; return those that none found."""
    left = []
    for fault, test in found:
        print(
            f"{listed.index(fault):2} {fault.path}:{fault.line} {fault.function}:"
            f" {fault.before!r} -> {fault.after!r}: {test or 'NOT FOUND'}",
            flush=True,
        )
        if test:
            listed[listed.index(fault)] = fault._replace(found_by=test)
            LIST.write_text(_as_text(listed) + "\n")
        else:
            left.append(fault)
    print(f"{len(faults) - len(left)} of {len(faults)} found\n", flush=True)
    return left


if __name__ == "__main__":
    sys.exit(main())
