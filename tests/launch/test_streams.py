"""The script owns the terminal: a line of ours at most before it and after it, none with -q."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.programs import (
    CPUTRAIN,
    PYTHON,
    from_shell,
    launch,
    ours,
    plain,
    planned,
    run,
    script,
    verb,
)


def test_a_script_without_torch_gets_no_line(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    assert launch(tmp_path, "x.py").stderr == ""
    assert launch(tmp_path, "-q", "x.py").stderr == ""


def test_a_warning_is_one_line_and_quiet_silences_it(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    changes = {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "99"}
    done = launch(tmp_path, "--huge-pages", "on", "--allocator", "default", "x.py", **changes)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert len(done.stderr.splitlines()) == len(ours(done)) == 1
    for part in ("OMP_PROC_BIND", "99 threads", "--huge-pages on has no effect"):
        assert part in done.stderr
    assert launch(tmp_path, "-q", "x.py", **changes).stderr == ""


def test_a_run_with_torch_ends_with_one_line(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, subprocess, sys, torch\n"
        "assert 'CPUTRAIN_REPORT' not in os.environ\n"
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)\n"
        "if os.fork() == 0:\n    sys.exit(0)\n"
        "os.wait()\nprint('done')",
    )
    done = launch(tmp_path, "x.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert len(done.stderr.splitlines()) == len(ours(done)) == 1, done.stderr
    assert "threads" in done.stderr
    assert launch(tmp_path, "-q", "x.py").stderr == ""


def test_workers_that_import_torch_before_their_parent_are_silent(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import multiprocessing as m, subprocess, sys\n"
        "def f(x):\n    import torch\n    return x\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(2) as pool:\n"
        "        print(pool.map(f, [1, 2]))\n"
        "    subprocess.run([sys.executable, '-c', 'import torch'], check=True)\n",
    )
    done = launch(tmp_path, "x.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


def test_the_inner_of_two_launches_decides_whether_to_speak(tmp_path: Path) -> None:
    script(tmp_path, "import torch")
    inner = (PYTHON, "-m", "cputrain.launch", "launch")
    assert launch(tmp_path, "--cmd", "--", *inner, "-q", "x.py").stderr == ""
    assert len(ours(launch(tmp_path, "-q", "--cmd", "--", *inner, "x.py"))) == 1


def test_a_dry_run_prints_a_command_that_does_the_same(tmp_path: Path) -> None:
    text = (
        "import json, os, sys\n"
        "kept = {k: v for k, v in os.environ.items() if k not in ('_', 'PWD', 'SHLVL', 'OLDPWD')}\n"
        "print(json.dumps([sys.argv, sys.path, kept, sorted(os.sched_getaffinity(0))]))\n"
        "sys.exit(7)"
    )
    script(tmp_path, text, "a 'b\" $c.py")
    words = ("--placement", "0", "--start-method", "spawn", "a 'b\" $c.py", "x y", "$HOME", "*")
    changes = {"PYTHONPATH": "p q:", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=3"}
    ours_, shells = launch(tmp_path, *words, **changes), from_shell(tmp_path, *words, **changes)
    assert ours_.returncode == shells.returncode == 7
    assert json.loads(ours_.stdout) == json.loads(shells.stdout)


def test_explain_tells_every_decision_on_standard_error(tmp_path: Path) -> None:
    script(tmp_path, "print(1)")
    done = launch(tmp_path, "--explain", "-q", "x.py", COLUMNS="300")
    assert done.stdout == "1\n"
    for name, decision in planned(tmp_path, "x.py").items():
        assert name.replace("_", " ") in done.stderr
        assert decision["reason"] in done.stderr
    assert launch(tmp_path, "--explain", "--dry-run", "x.py").stdout.startswith("env ")


def test_colour_follows_the_conventions(tmp_path: Path) -> None:
    assert "\x1b" not in verb(tmp_path, "plan").stdout
    assert "\x1b" in verb(tmp_path, "plan", FORCE_COLOR="1").stdout
    for name in ("plan", "info"):
        done = verb(tmp_path, name, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_readers_that_leave_early_hear_no_complaint(tmp_path: Path) -> None:
    for words in ("info", "info --json", "plan", "plan --json", "--help", "launch --help"):
        done = run(("bash", "-c", f"{CPUTRAIN} {words} | true"), tmp_path)
        assert done.stderr == ""
        done = run(("sh", "-c", f"{CPUTRAIN} {words} > /dev/full"), tmp_path)
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "No space left" in done.stderr
        done = run(("sh", "-c", f"{CPUTRAIN} {words} >&-"), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_double_launches_work_and_plan_like_one(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import json, os, sys\n"
        "ours = ('CPUTRAIN_PLAN', 'OMP_NUM_THREADS', 'GLIBC_TUNABLES', 'PYTHONPATH')\n"
        "print(json.dumps([sys.argv, sys.path, [os.environ.get(name) for name in ours]]))",
    )
    where = {"PATH": f"{Path(CPUTRAIN).parent}:/usr/bin:/bin", "PYTHONPATH": "p"}
    once = run((CPUTRAIN, "launch", "x.py", "-q"), tmp_path, **where)
    for inner in ("cputrain", CPUTRAIN):
        twice = run((CPUTRAIN, "launch", inner, "launch", "x.py", "-q"), tmp_path, **where)
        assert (twice.returncode, twice.stderr) == (0, "")
        assert json.loads(twice.stdout) == json.loads(once.stdout)
    assert plain(tmp_path, "x.py").returncode == 0
