"""What a script sees is what plain python shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import (
    LAUNCH,
    PYTHON,
    VIEW,
    environment,
    in_terminal,
    launch,
    plain,
    run,
    script,
)

pytestmark = pytest.mark.executed


def both(folder: Path, *words: str, **options: Any) -> dict[str, Any]:
    """The script's view, once it is the same under both."""
    ours, theirs = launch(folder, *words, **options), plain(folder, *words, **options)
    assert theirs.returncode == 0, theirs.stderr
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    found: dict[str, Any] = json.loads(ours.stdout)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["x.py"],
        ["x.py", "--", "-q", "--threads", "9", "-m", "", "--help", "a b", "ü"],
        ["./x.py"],
        ["sub/../x.py"],
        ["-m", "pkg.mod", "--dry-run", "-q"],
        ["-m", "pkg", "x"],
        ["-m", "x"],
        ["folder"],
        ["a b/ü ß.py", "1"],
    ],
)
def test_a_target_is_started_as_python_starts_it(tmp_path: Path, words: list[str]) -> None:
    for name in ("x.py", "pkg/mod.py", "pkg/__main__.py", "folder/__main__.py", "a b/ü ß.py"):
        script(tmp_path, VIEW, name)
    script(tmp_path, "", "pkg/__init__.py")
    (tmp_path / "sub").mkdir()
    view = both(tmp_path, *words)
    assert view["modules"] == []


def test_standard_input_is_a_script_and_belongs_to_the_script(tmp_path: Path) -> None:
    both(tmp_path, "-", "a", "-b", stdin=VIEW)
    script(tmp_path, "import sys; print(repr(sys.stdin.read()))")
    text = "line\n\x00\tend, no newline"
    ours, theirs = launch(tmp_path, "x.py", stdin=text), plain(tmp_path, "x.py", stdin=text)
    assert ours.stdout == theirs.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"PYTHONPATH": "b:/nowhere:a"},
        {"PYTHONPATH": ":a:"},
        {"PYTHONPATH": ""},
        {"PYTHONSAFEPATH": "1"},
        {"PYTHONOPTIMIZE": "2", "PYTHONUNBUFFERED": "1"},
        {"PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0"},
        {"PYTHONDEVMODE": "1", "PYTHONUTF8": "1"},
    ],
)
def test_variables_of_python_keep_their_meaning(tmp_path: Path, changes: dict[str, str]) -> None:
    script(tmp_path, VIEW)
    (tmp_path / "a").mkdir()
    both(tmp_path, "x.py", **changes)


def test_interpreter_options_are_handed_on(tmp_path: Path) -> None:
    script(tmp_path, VIEW)
    theirs = plain(tmp_path, "-u", "-X", "dev", "-W", "error::ImportWarning", "-O", "x.py", "-v")
    ours = launch(tmp_path, "--python-args", "-u -X dev -W error::ImportWarning -O", "x.py", "-v")
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert ours.stderr == theirs.stderr == ""
    for options in ("-I", "-E -u", "-S"):
        done = launch(tmp_path, "--python-args", options, "x.py")
        assert done.returncode == 0
        assert len(done.stderr.splitlines()) == 1
        assert "disables cputrain's sitecustomize" in done.stderr


def test_an_interactive_interpreter_follows_the_script(tmp_path: Path) -> None:
    script(tmp_path, "answer = 41")
    argv = (*LAUNCH, "--python-args", "-i", "x.py")
    shown, status = in_terminal(argv, tmp_path, "print(answer + 1)\r", "exit(6)\r")
    assert "42" in shown
    assert os.waitstatus_to_exitcode(status) == 6


def test_a_command_gets_its_words_untouched(tmp_path: Path) -> None:
    done = launch(tmp_path, "--cmd", "--", PYTHON, "-c", "import sys; print(sys.argv)", "--", "-q")
    assert done.stdout == "['-c', '--', '-q']\n"
    done = launch(tmp_path, "--cmd", "printf", "%s,", "--", "--threads", "a b")
    assert done.stdout == "--,--threads,a b,"
    assert done.stderr == ""


def test_a_closed_pipe_ends_a_command_at_once(tmp_path: Path) -> None:
    joined = " ".join((*LAUNCH, "--cmd", "--", "yes"))
    done = run(("bash", "-c", f"{joined} | head -1; echo ${{PIPESTATUS[0]}}"), tmp_path)
    assert done.stdout.split() == ["y", "141"]
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_stay_closed(tmp_path: Path, closed: str) -> None:
    script(
        tmp_path,
        "import os, sys\n"
        "open('seen', 'w').write(repr([sys.stdin is None, sys.stdout is None, sys.stderr is None]))"
        "\nsys.exit(3)",
    )
    seen = []
    for words in ((*LAUNCH, "x.py"), (PYTHON, "x.py")):
        done = run(("sh", "-c", f"{' '.join(words)} {closed}"), tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
        seen.append((tmp_path / "seen").read_text())
        (tmp_path / "seen").unlink()
    assert seen[0] == seen[1]


def test_a_working_folder_that_was_removed_is_no_obstacle(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print(len(sys.path)); sys.exit(4)")
    for words in ((*LAUNCH, str(path)), (PYTHON, str(path))):
        gone = f"mkdir gone; cd gone; rmdir ../gone; {' '.join(words)}"
        done = run(("sh", "-c", gone), tmp_path)
        assert (done.returncode, done.stderr) == (4, "")


def test_umask_and_inherited_descriptors_are_kept(tmp_path: Path) -> None:
    script(tmp_path, "import os; print(oct(os.umask(0)), os.read(7, 5))")
    for words in ((*LAUNCH, "x.py"), (PYTHON, "x.py")):
        done = run(("bash", "-c", f"umask 027; {' '.join(words)} 7<<<hello"), tmp_path)
        assert done.stdout == "0o27 b'hello'\n", done.stderr


def test_names_that_are_no_text_are_handed_on(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff x.py")
    script(tmp_path, "import sys; print(ascii(sys.argv))", name)
    ours, theirs = launch(tmp_path, name, name), plain(tmp_path, name, name)
    assert ours.stdout == theirs.stdout
    done = subprocess.run(
        [*LAUNCH, "-q", "--dry-run", name],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        check=True,
    )
    assert b"\xff x.py" in done.stdout


def test_a_file_named_like_an_option_is_a_script(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv)", "-x.py")
    ours, theirs = launch(tmp_path, "--", "-x.py", "-q"), plain(tmp_path, "--", "-x.py", "-q")
    assert ours.stdout == theirs.stdout == "['-x.py', '-q']\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_that_import_the_main_module_again_work(tmp_path: Path, method: str) -> None:
    script(
        tmp_path,
        "import multiprocessing, sys\n"
        "def f(x):\n"
        "    return x * x, 'sitecustomize' in sys.modules, sys.path, __name__\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    with context.Pool(2) as pool:\n"
        "        print(sorted(pool.map(f, [1, 2, 3]))[:3])\n",
    )
    ours, theirs = launch(tmp_path, "x.py"), plain(tmp_path, "x.py")
    assert theirs.returncode == 0
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


def test_the_start_method_changes_only_when_asked(tmp_path: Path) -> None:
    text = (
        "import multiprocessing as m\nprint(m.get_start_method(allow_none=True))\n"
        "m.set_start_method('forkserver')\nprint(m.get_start_method())"
    )
    script(tmp_path, text)
    assert launch(tmp_path, "x.py").stdout == plain(tmp_path, "x.py").stdout
    script(tmp_path, "import multiprocessing as m\nprint(m.get_start_method())", "y.py")
    assert launch(tmp_path, "--start-method", "spawn", "y.py").stdout == "spawn\n"
    assert launch(tmp_path, "--start-method", "spawn", "x.py").stdout.split()[1] == "forkserver"


def test_a_script_that_imports_no_torch_loads_nothing_of_ours(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import multiprocessing.pool, concurrent.futures, json, sys\nprint(sorted(sys.modules))\n",
    )
    ours, theirs = launch(tmp_path, "x.py"), plain(tmp_path, "x.py")
    assert ours.stdout == theirs.stdout
    assert ours.stderr == ""
    assert sys.version_info >= (3, 11)
