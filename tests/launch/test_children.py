"""What a script's children see of a launch: python's environment, and the plan for their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import CPUTRAIN, PYTHON, environment, launch, plain, run, script
from tests.selected import cases

SEEN = """
import json, multiprocessing, os, subprocess, sys
{before}

def seen():
    kept = {{name: value for name, value in os.environ.items() if name not in ("_", "PWD")}}
    return [kept, os.environb.get(b"LD_PRELOAD", b"").decode()]

def tell(queue):
    queue.put(seen())

if __name__ == "__main__":
    found = [seen()]
    found.append(subprocess.check_output(["env", "-0"], text=True).split("\\0"))
    child = "import json, os; print(json.dumps(dict(os.environ)))"
    found.append(json.loads(subprocess.check_output([sys.executable, "-c", child])))
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=tell, args=(queue,))
        process.start()
        found.append(queue.get())
        process.join()
    print(json.dumps(found))
"""

OURS = ("CPUTRAIN_PLAN", "PYTHONPATH")
"""The only variables in which a launched script's environment differs from python's."""


def without_ours(seen: Any) -> Any:
    if isinstance(seen, dict):
        return {name: value for name, value in seen.items() if name not in (*OURS, "_", "SHLVL")}
    if isinstance(seen, list) and all(isinstance(entry, str) for entry in seen):
        return sorted(
            entry for entry in seen if not entry.startswith((*OURS, "_=", "PWD=", "SHLVL="))
        )
    return [without_ours(entry) for entry in seen] if isinstance(seen, list) else seen


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--threads", "1"],
        ["--short-waits", "on"],
        ["--interop-threads", "1", "--placement", "cores"],
        ["--flush-denormals", "on", "--huge-pages", "off"],
        ["--start-method", "spawn", "--precision", "bf16", "--channels-last", "on"],
    ],
)
@pytest.mark.parametrize("before", cases(["", "import torch"], [""]))
def test_the_environment_of_children_is_pythons(
    tmp_path: Path, words: list[str], before: str
) -> None:
    script(tmp_path, SEEN.format(before=before))
    theirs, ours = plain(tmp_path, "x.py"), launch(tmp_path, *words, "x.py")
    assert (theirs.returncode, ours.returncode) == (0, 0), ours.stderr
    assert without_ours(json.loads(ours.stdout)) == without_ours(json.loads(theirs.stdout))


@pytest.mark.parametrize("before", cases(["", "import torch"], [""]))
def test_what_the_user_has_set_reaches_children_unchanged(tmp_path: Path, before: str) -> None:
    script(tmp_path, SEEN.format(before=before))
    changes = {
        "OMP_NUM_THREADS": "1", "MALLOC_TOP_PAD_": "65536", "PYTHONPATH": "a:b",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=3", "GOMP_SPINCOUNT": "7",
    }  # fmt: skip
    theirs, ours = plain(tmp_path, "x.py", **changes), launch(tmp_path, "x.py", **changes)
    assert without_ours(json.loads(ours.stdout)) == without_ours(json.loads(theirs.stdout))
    paths = {json.loads(done.stdout)[0][0]["PYTHONPATH"] for done in (theirs, ours)}
    assert {path.split(":")[-2:] == ["a", "b"] for path in paths} == {True}


def test_a_preloaded_library_is_for_the_script_alone(tmp_path: Path) -> None:
    library = _any_library()
    script(
        tmp_path,
        "import os, subprocess\n"
        f"print({library!r} in open('/proc/self/maps').read(), os.environ.get('LD_PRELOAD'))\n"
        "shown = subprocess.check_output(['env'], text=True).replace('=', '\\n')\n"
        "print('LD_PRELOAD' in shown.split())\n",
    )
    done = launch(tmp_path, "--allocator", library, "x.py")
    assert done.stdout == "True None\nFalse\n", done.stderr
    before = launch(tmp_path, "--allocator", library, "x.py", LD_PRELOAD=library)
    assert before.stdout == f"True {library}\nTrue\n"


def _any_library() -> str:
    """Some shared library that can be preloaded and is not loaded by python itself."""
    for line in run(("/sbin/ldconfig", "-p"), Path("/")).stdout.splitlines():
        path = line.rpartition("=> ")[2]
        if "libBrokenLocale.so" in path and "x86-64" in line:
            return path
    pytest.fail("no library was found to preload")


LIMITED = """
import resource, subprocess, sys
{before}
if {trains}:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

def starts(mib):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
    done = subprocess.run([sys.executable, "-c", "import json"], preexec_fn=limit,
                          capture_output=True)
    return done.returncode == 0

low, high = 1, 1024
while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if starts(middle) else (middle, high)
print(high)
"""


@pytest.mark.executed
@pytest.mark.parametrize("trains", cases([False, True], [False]))
def test_children_need_no_more_address_space_than_under_python(
    tmp_path: Path, trains: bool
) -> None:
    before = "import torch" if trains else ""
    script(tmp_path, LIMITED.format(before=before, trains=trains))
    theirs, ours = plain(tmp_path, "x.py"), launch(tmp_path, "x.py")
    assert theirs.returncode == 0, theirs.stderr
    assert int(ours.stdout) <= int(theirs.stdout) + 2, ours.stderr


LIMITS = ("", "OMP_NUM_THREADS=1", "OMP_NUM_THREADS=3", "MKL_NUM_THREADS=2")


@pytest.mark.parametrize("limit", cases(LIMITS, ["OMP_NUM_THREADS=3"]))
def test_limits_on_a_childs_threads_are_its_own(tmp_path: Path, limit: str) -> None:
    """As joblib sets them for its workers; without them, a child has the plan's number at most."""
    script(
        tmp_path,
        "import os, subprocess, sys, torch\n"
        "ask = [sys.executable, '-c', 'import torch; print(torch.get_num_threads())']\n"
        "name, _, value = sys.argv[1].partition('=')\n"
        "environment = {**os.environ, **({name: value} if name else {})}\n"
        "child = subprocess.check_output(ask, env=environment, text=True)\n"
        "print(torch.get_num_threads(), child)\n",
    )
    theirs = plain(tmp_path, "x.py", limit).stdout.split()
    assert launch(tmp_path, "x.py", limit).stdout.split() == theirs
    limited = launch(tmp_path, "--threads", "1", "x.py", limit).stdout.split()
    assert limited == ["1", theirs[1] if limit else "1"]


def test_the_users_sitecustomize_runs_once(tmp_path: Path) -> None:
    script(tmp_path, "print('customized')", "site/sitecustomize.py")
    script(tmp_path, "print('script')")
    done = run((CPUTRAIN, "launch", "x.py"), tmp_path, PYTHONPATH="site")
    assert done.stdout == "customized\nscript\n", done.stderr
    # what would break or slow any interpreter reaches the script's alone
    script(tmp_path, "raise SystemExit('not in the launcher')", "broken/json.py")
    done = run((CPUTRAIN, "launch", "x.py"), tmp_path, PYTHONPATH="broken", PYTHONVERBOSE="")
    assert done.stdout == "script\n", done.stderr


def test_the_command_works_through_a_link_and_for_every_verb(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.executable, sys.argv[1:])")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cputrain").symlink_to(CPUTRAIN)
    direct = run((CPUTRAIN, "launch", "x.py", "a b"), tmp_path)
    linked = run((str(tmp_path / "bin" / "cputrain"), "launch", "x.py", "a b"), tmp_path)
    assert direct.stdout == linked.stdout == f"{PYTHON} ['a b']\n", direct.stderr
    for words in (("--version",), ("plan", "--json"), ("launch", "--explain", "x.py")):
        done = run((CPUTRAIN, *words), tmp_path)
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        ["sh", CPUTRAIN, "--version"], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout.startswith("cputrain "), done.stderr
