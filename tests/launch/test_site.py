"""The hook in the script's interpreter: it steps aside, and its faults end with a line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.launch.programs import PYTHON, from_shell, launch, ours, plain, run, script

pytestmark = pytest.mark.executed

SITE = str(Path(__file__).parents[2] / "cputrain" / "runtime" / "site")


def test_the_users_sitecustomize_runs_and_is_the_module(tmp_path: Path) -> None:
    script(tmp_path, "import sys\nprint('hello', __name__, __file__)\nx = 5", "s/sitecustomize.py")
    script(tmp_path, "print('user', __name__)", "s/usercustomize.py")
    script(
        tmp_path,
        "import sys, sitecustomize as s\n"
        "print(s.x, s.__file__, sys.modules['sitecustomize'] is s, s.__spec__.origin, sys.path)",
    )
    theirs = plain(tmp_path, "x.py", PYTHONPATH="s")
    # under the launcher's own interpreter it runs as well, as under any command in Python
    found = from_shell(tmp_path, "x.py", PYTHONPATH="s")
    assert "hello" in theirs.stdout
    assert (found.stdout, found.stderr) == (theirs.stdout, theirs.stderr)


def test_a_broken_sitecustomize_fails_as_under_python(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    for text in ("1 / 0", "import no_such_module", "raise ImportError", "("):
        script(tmp_path, text, "s/sitecustomize.py")
        theirs = plain(tmp_path, "x.py", PYTHONPATH="s")
        found = from_shell(tmp_path, "x.py", PYTHONPATH="s")
        assert (found.returncode, found.stdout) == (theirs.returncode, theirs.stdout)
        assert found.stderr == theirs.stderr


def test_a_torch_that_fails_to_load_fails_the_same_way(tmp_path: Path) -> None:
    script(tmp_path, "import torch.nn as nn")
    for text in (
        "raise RuntimeError('no torch today')",
        "import no_such_module",
        "from torch import no_such_name",
        "import sys; sys.exit(7)",
        "import warnings; warnings.warn('old', stacklevel=2); 1 / 0",
    ):
        script(tmp_path, text, "f/torch/__init__.py")
        theirs = plain(tmp_path, "x.py", PYTHONPATH="f")
        found = launch(tmp_path, "x.py", PYTHONPATH="f")
        assert theirs.returncode != 0
        assert (found.returncode, found.stdout) == (theirs.returncode, theirs.stdout)
        assert found.stderr == theirs.stderr


@pytest.mark.parametrize("end", ["", "raise ImportError", "from torch import no_such_name"])
@pytest.mark.parametrize("before", ["enable", "disable"])
def test_garbage_is_not_collected_while_torch_is_loaded(
    tmp_path: Path, before: str, end: str
) -> None:
    script(tmp_path, f"import gc\nprint(gc.isenabled())\n{end}", "f/torch/__init__.py")
    script(
        tmp_path,
        f"import contextlib, gc\ngc.{before}()\n"
        "with contextlib.suppress(ImportError):\n    import torch\n"
        "print(gc.isenabled())",
    )
    is_enabled = str(before == "enable")
    theirs = plain(tmp_path, "x.py", PYTHONPATH="f")
    assert theirs.stdout.split() == [is_enabled, is_enabled]
    found = launch(tmp_path, "x.py", PYTHONPATH="f")
    assert found.stdout.split() == ["False", is_enabled]


def test_without_any_torch_the_error_is_pythons(tmp_path: Path) -> None:
    script(tmp_path, "import sys; sys.path[1:] = []\nimport torch")
    theirs, found = plain(tmp_path, "x.py"), launch(tmp_path, "x.py")
    assert "ModuleNotFoundError" in theirs.stderr
    assert found.stderr == theirs.stderr


def test_a_package_that_only_calls_itself_torch_costs_a_line(tmp_path: Path) -> None:
    script(tmp_path, "import torch; print(torch.x, torch.__spec__.loader.__dict__)")
    script(tmp_path, "x = 1", "f/torch/__init__.py")
    theirs = plain(tmp_path, "x.py", PYTHONPATH="f")
    for words in ((), ("--start-method", "spawn", "--loader-cores", "1")):
        found = launch(tmp_path, *words, "x.py", PYTHONPATH="f")
        assert (found.returncode, found.stdout) == (0, theirs.stdout)
        assert len(found.stderr.splitlines()) == len(ours(found)) == 1


def test_a_torch_in_an_archive_is_found_and_asked_for_more_than_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("torch/__init__.py", "x = 1\n")
        archive.writestr("other.py", "x = 2\n")
    script(
        tmp_path,
        "import importlib.util as u\n"
        "assert u.find_spec('torch') and u.find_spec('torch')\n"
        "import other, torch\nprint(other.x, torch.x)",
    )
    found = launch(tmp_path, "x.py", PYTHONPATH="f.zip")
    assert (found.returncode, found.stdout) == (0, "2 1\n"), found.stderr
    assert len(ours(found)) == 1


def test_modules_of_the_script_with_our_name_cost_a_line(tmp_path: Path) -> None:
    script(tmp_path, "x = 3", "cputrain.py")
    script(tmp_path, "x = 1", "torch.py")
    path = script(tmp_path, "import torch, cputrain; print(torch.x, cputrain.x)")
    (tmp_path / "elsewhere").mkdir()
    found = launch(tmp_path, str(path), where=tmp_path / "elsewhere")
    assert (found.returncode, found.stdout) == (0, "1 3\n"), found.stderr
    assert len(found.stderr.splitlines()) == len(ours(found)) == 1


def test_a_plan_that_cannot_be_read_costs_one_line(tmp_path: Path) -> None:
    script(tmp_path, "import multiprocessing, torch\nprint(torch.x)")
    script(tmp_path, "import multiprocessing\nx = 1", "torch.py")
    for text in ("", "{", "[]", "5", '{"values": 3}', "[" * 100_000, '{"script":"x"}', "\x7f"):
        done = run(
            (PYTHON, "x.py"), tmp_path, PYTHONPATH=SITE, CPUTRAIN_PLAN=text,
            LOCAL_RANK="0", LOCAL_WORLD_SIZE="2",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        assert len(done.stderr.splitlines()) == len(ours(done)) == 1
        assert "CPUTRAIN_PLAN must hold" in done.stderr
        found = launch(tmp_path, "x.py", CPUTRAIN_PLAN=text)
        assert "CPUTRAIN_PLAN" not in found.stderr
        assert found.stdout == "1\n"


def test_an_interpreter_without_cputrain_runs_the_hook_all_the_same(tmp_path: Path) -> None:
    script(tmp_path, "import torch, sys; print(sorted(m for m in sys.modules if 'cputr' in m)[:1])")
    script(tmp_path, "x = 1", "torch.py")
    done = launch(tmp_path, "--cmd", "--", PYTHON, "-S", "-c", "print(5)")
    assert done.stdout == "5\n"
    venv = run((PYTHON, "-m", "venv", "--without-pip", "bare"), tmp_path)
    assert venv.returncode == 0
    done = launch(tmp_path, "--cmd", "--", "bare/bin/python", "x.py")
    assert (done.returncode, done.stdout) == (0, "['cputrain']\n"), done.stderr
    assert len(ours(done)) == 1


def test_nothing_is_written_when_standard_error_is_closed(tmp_path: Path) -> None:
    script(tmp_path, "x = 1", "torch.py")
    script(tmp_path, "import torch; print(torch.x)")
    joined = f"{PYTHON} -m cputrain.launch launch x.py 2>&-"
    assert run(("sh", "-c", joined), tmp_path).stdout == "1\n"
