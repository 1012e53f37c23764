"""What a newcomer types by mistake: the message, the hint and the exit code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch.programs import PYTHON, complaint, environment, ours, script, verb


class Mistake(NamedTuple):
    """A command line, and what is said about it."""

    words: str
    message: str
    hint: str
    code: int = 2


MISTAKES = [
    # the command
    Mistake("ok.py --epochs 3", "ok.py is not a command", "cputrain launch ok.py --epochs 3"),
    Mistake("--threads 4 ok.py", "is not a command", "cputrain launch --threads 4 ok.py"),
    Mistake("lunch ok.py", "lunch is not a command", "Did you mean: cputrain launch ok.py"),
    Mistake("run ok.py", "run is not a command", "Did you mean: cputrain launch ok.py"),
    Mistake("benchmark ok.py", "is not a command", "Did you mean: cputrain bench ok.py"),
    Mistake("profile ok.py", "is not a command", "Did you mean: cputrain diagnose ok.py"),
    Mistake("Launch ok.py", "is not a command", "Did you mean: cputrain launch ok.py"),
    Mistake("frobnicate", "is not a command", "See: cputrain --help"),
    Mistake("help lunch", "lunch is not a command", "Did you mean: cputrain launch"),
    Mistake("completions", "the shell must be one of bash, zsh, fish", "completions bash"),
    Mistake("completions fsh", "found fsh", "Did you mean fish?"),
    # the script
    Mistake("launch", "the script is missing", "cputrain launch [options] train.py"),
    Mistake("launch slwo.py", "the script slwo.py does not exist", "Did you mean slow.py?", 127),
    Mistake("launch ok", "the script ok does not exist", "Did you mean ok.py?", 127),
    Mistake("launch OK.py", "does not exist", "Did you mean ok.py?", 127),
    Mistake("launch sub/tarin.py", "no such file in sub", "Did you mean sub/train.py?", 127),
    Mistake("launch subb/train.py", "found no folder subb", "The working folder is", 127),
    Mistake("launch python ok.py", "python does not exist", "Leave out python: cputrain", 127),
    Mistake("launch ls -l", "ls does not exist", "cputrain launch --cmd -- ls -l", 127),
    Mistake("launch -- --threads", "--threads does not exist", "Options stand before --", 127),
    Mistake("launch book.ipynb", "found a notebook", "%load_ext cputrain", 126),
    Mistake("launch run.sh", "found a shell script", "--cmd -- bash run.sh", 126),
    Mistake("launch sub", "found a folder without __main__.py", "Name the script inside", 126),
    Mistake("launch --cmd -- nothere", "the command nothere does not exist", "Check its name", 127),
    Mistake("launch --cmd -- ./ok.py", "must be an executable file", "launch script.py", 126),
    Mistake("launch -m --cmd ok", "--module cannot be given with --cmd", "Leave one of them"),
    Mistake("tune -", "must be a file", "Run: cputrain tune train.py"),
    Mistake("diagnose slwo.py", "does not exist", "Did you mean slow.py?", 127),
    Mistake("bench nothere.py", "does not exist", "cputrain bench --list", 127),
    Mistake("bench slwo.py", "does not exist", "Did you mean slow.py?", 127),
    Mistake("bench resnt50", "does not exist", "Did you mean resnet50?", 127),
    Mistake("bench book.ipynb", "found a notebook", "%load_ext cputrain", 126),
    Mistake("bench", "the script is missing", "cputrain bench [options] train.py"),
    Mistake("tune", "the script is missing", "Usage: cputrain tune [options] train.py"),
    Mistake("diagnose", "the script is missing", "Usage: cputrain diagnose [options] train.py"),
    Mistake("verify", "the script is missing", "Usage: cputrain verify [options] train.py"),
    Mistake("tune nothing.py", "does not exist", "Check its name, or give its path.", 127),
    Mistake("plan slwo.py", "the script slwo.py does not exist", "Did you mean slow.py?", 127),
    Mistake("plan book.ipynb", "found a notebook", "%load_ext cputrain", 126),
    # the name of an option
    Mistake("launch --thread 1 ok.py", "--thread is not an option", "Did you mean --threads?"),
    Mistake("launch --interop_threads 1 ok.py", "is not an", "Did you mean --interop-threads?"),
    Mistake("launch --alloc default ok.py", "is not an option", "Did you mean --allocator?"),
    Mistake("launch --verbose ok.py", "is not an option", "Did you mean --explain?"),
    Mistake("launch -v ok.py", "-v is not an option", "Did you mean --explain?"),
    Mistake("launch --num-threads 1 ok.py", "is not an option", "Did you mean --threads N?"),
    Mistake("launch -n 2 ok.py", "-n is not an option", "Did you mean --nproc-per-node N?"),
    Mistake("launch --num_processes 2 ok.py", "is not an option", "--nproc-per-node N?"),
    Mistake("launch --ninstances 2 ok.py", "is not an option", "--nproc-per-node N?"),
    Mistake("launch --enable-jemalloc ok.py", "is not", "Did you mean --allocator jemalloc?"),
    Mistake("launch --amp ok.py", "is not an option", "Did you mean --precision bf16?"),
    Mistake("launch -u ok.py", "-u is not an option", "Did you mean --python-args=-u?"),
    Mistake("launch --epochs 3 ok.py", "is not an option", "options come after its name"),
    Mistake("tune --timeout 60 ok.py", "is not an option", "Did you mean --budget TIME?"),
    Mistake("diagnose -o page.html ok.py", "is not an option", "Did you mean --html FILE?"),
    Mistake("bench --rounds 3 ok.py", "is not an option", "Did you mean --repeats N?"),
    # its value
    Mistake("launch --threads ok.py", "found the script ok.py", "launch --threads=2 ok.py"),
    Mistake("launch --compile ok.py", "found the script ok.py", "launch --compile=on ok.py"),
    Mistake("launch --threads", "needs a value (N|auto)", "For example: --threads=2"),
    Mistake("launch --threads 0 ok.py", "must be auto or", "Leave it out"),
    Mistake("launch --threads 9999 ok.py", "logical CPU", "Leave it out"),
    Mistake("launch --precision bfloat16 ok.py", "must be one of", "Did you mean bf16?"),
    Mistake("launch --precision fp16 ok.py", "must be one of", "float16 is not offered on CPUs"),
    Mistake("launch --learn=maybe ok.py", "must be one of auto, on, off", ""),
    Mistake("launch --allocator rpmalloc ok.py", "found 'rpmalloc'", "Install rpmalloc with the"),
    Mistake("bench --launch-args '--treads 1' ok.py", "--treads is not", "Did you mean --threads?"),
    Mistake("bench --replicas 1,many ok.py", "--replicas must be auto or", "Leave it out"),
    Mistake("bench --backends zendn ok.py", "--backend must be one of", "Did you mean zendnn?"),
    Mistake("launch --precision fp32 ok.py", "must be one of", "Did you mean float32?"),
    Mistake("launch --compile true ok.py", "must be one of auto, on, off", "Did you mean on?"),
    Mistake("launch --compile 0 ok.py", "must be one of auto, on, off", "Did you mean off?"),
    Mistake("launch --dry-run=yes ok.py", "takes no value", "Use --dry-run alone."),
    Mistake("launch --allocator jmalloc ok.py", "found 'jmalloc'", "Did you mean jemalloc?"),
    Mistake("launch --backend zendn ok.py", "must be one of auto", "Did you mean zendnn?"),
    Mistake("launch --start-method frok ok.py", "must be one of", "Did you mean fork?"),
    Mistake("launch --placement 0-99999 ok.py", "--placement", "CPU"),
    Mistake("launch --nproc-per-node nuna ok.py", "must be a whole number", "Did you mean numa?"),
    Mistake("launch --nproc-per-node 0 ok.py", "must be a whole number", "--nproc-per-node auto"),
    Mistake("launch --nnodes two ok.py", "--nnodes must be a whole number", "--nnodes 2"),
    Mistake("launch --python-args \"'-u\" ok.py", "must be quoted", "Close the quotation marks"),
    Mistake("tune --budget 5 ok.py", "must be a duration from 10s to 24h", "90s, 5m or 2h"),
    Mistake("tune --budget 5min ok.py", "must be a duration", "90s, 5m or 2h"),
    Mistake("tune --steps 3 ok.py", "must be a whole number from 5", "Try 30"),
    Mistake("bench --repeats many ok.py", "must be a whole number", "Try 5"),
    Mistake("bench --exhaustive ok.py", "--exhaustive requires --tune", "--tune 60"),
    # files
    Mistake("launch --plan ok.py", "needs a value (FILE)", "launch --plan=FILE ok.py"),
    Mistake("launch --nproc-per-node 2 --plan no.json ok.py", "cannot be given with ranks", "out"),
    Mistake("launch --plan none.json ok.py", "must be a readable file", "cputrain plan --json"),
    Mistake("launch --plan run.sh ok.py", "--plan run.sh", "cputrain plan --json"),
    Mistake("diagnose --html none/p.html ok.py", "the folder none does not exist", "Create it"),
    Mistake("diagnose --html sub ok.py", "cannot be written: it is a folder", "Name another"),
    Mistake("diagnose --html run.sh ok.py", "would overwrite a file", "add --force"),
    Mistake("info --capture none/m.json", "the folder none does not exist", "Create it"),
    Mistake("info --from none.json", "none.json", "cputrain info --capture"),
    Mistake("report", "must name one or two files", "cputrain diagnose --json"),
    Mistake("report ok.py", "found text that is not JSON", "cputrain diagnose --json"),
    Mistake("report page", "found a page of HTML", "cputrain diagnose --json"),
    Mistake("report void", "found an empty file", "cputrain diagnose --json"),
    Mistake("launch --plan page ok.py", "found a page of HTML", "cputrain plan --json"),
    Mistake("plan --from run.sh", "found text that is not JSON", "cputrain info --capture"),
    Mistake("info --from book.ipynb", "must", "cputrain info --capture"),
    Mistake("info --sysroot empty", "must be a folder with sys/ and proc/", "--from FILE"),
    Mistake("info --sysroot none", "no such folder", "--from FILE"),
    Mistake("info --sysroot hollow", "must contain", ""),
    Mistake("info --measure --sysroot hollow", "works on this machine only", "Leave out"),
    Mistake("info extra", "is not expected", ""),
    Mistake("plan --sysroot / --from x", "cannot be given with --from", "Leave one of them out"),
    Mistake("plan --why-not everything", "--why-not must be a setting (threads", "Name one of"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a newcomer has in it."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name in ("ok.py", "slow.py", "sub/train.py"):
        script(folder, "print('ran')\n", name)
    (folder / "empty").mkdir()
    (folder / "hollow/sys").mkdir(parents=True)
    (folder / "book.ipynb").write_text('{"cells": [], "nbformat": 4}')
    (folder / "page").write_text("<!doctype html><title>A page</title>")
    (folder / "void").touch()
    (folder / "run.sh").write_text("for i in 1 2; do python ok.py; done\n")
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.words)
def test_a_mistake_has_a_message_a_hint_and_a_code(folder: Path, mistake: Mistake) -> None:
    from shlex import split

    line = complaint(verb(folder, *split(mistake.words)), mistake.code)
    assert mistake.message in line
    assert mistake.hint in line
    assert not {"page.html", "p.html"} & {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("words", "variables", "note"),
    [
        ("launch ok.py", {"CPUTRAIN_THREDS": "1"}, "did you mean CPUTRAIN_THREADS?"),
        ("launch ok.py", {"CPUTRAIN_PRECISON": "bf16"}, "did you mean CPUTRAIN_PRECISION?"),
        ("launch ok.py --threads 1", {}, "cputrain launch --threads ... ok.py"),
        ("launch ok.py --explain", {}, "--explain stands behind ok.py"),
    ],
)
def test_what_has_no_effect_is_said_and_the_script_runs(
    folder: Path, words: str, variables: dict[str, str], note: str
) -> None:
    done = verb(folder, *words.split(), **variables)
    assert done.returncode == 0
    assert done.stdout == "ran\n"
    (line,) = ours(done)
    assert note in line


@pytest.mark.parametrize(
    "words",
    [
        "plan ok.py --channels-last on", "tune ok.py --budget 30s", "diagnose ok.py --html p.html",
        "verify ok.py --replicas 2",
    ],
)  # fmt: skip
def test_options_behind_the_script_are_told_by_every_command(folder: Path, words: str) -> None:
    command, _, flag, _ = words.split()
    done = verb(folder, *words.split())
    note = f"cputrain {command}: {flag} stands behind ok.py, so it is passed to the script; for"
    assert note in done.stderr.splitlines()[0]
    assert f"cputrain {command} {flag} ... ok.py" in done.stderr.splitlines()[0]


def test_the_next_command_of_a_plan_has_its_options(folder: Path) -> None:
    words = ("--all", "--threads", "1", "--python-args", "-u -X dev", "--learn", "ok.py", "a b")
    done = verb(folder, "plan", *words, COLUMNS="200")
    (line,) = (line for line in done.stdout.splitlines() if "Next:" in line)
    assert line == (
        "Next: cputrain launch --threads 1 --python-args '-u -X dev' --learn on ok.py 'a b'"
    )


@pytest.mark.parametrize("name", ["4", "channels last", "channels_last", "--channels-last", "Off"])
def test_why_not_takes_the_names_of_a_plan(folder: Path, name: str) -> None:
    done = verb(folder, "plan", f"--why-not={name}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "words", "variables"),
    [
        ("import sys; print('ran', '--threads' in sys.argv)", "--threads 1", {}),
        ("print('ran')", "--epochs 3", {"CPUTRAIN_OWN": "1", "CPUTRAIN_CI": "1"}),
        ("print('ran')", "-q", {"CPUTRAIN_OCL_TUNE": "0"}),
    ],
)
def test_what_is_no_mistake_is_not_mentioned(
    tmp_path: Path, text: str, words: str, variables: dict[str, str]
) -> None:
    script(tmp_path, text, "own.py")
    done = verb(tmp_path, "launch", "own.py", *words.split(), **variables)
    assert done.returncode == 0
    assert done.stdout.startswith("ran")
    assert done.stderr == ""


def test_a_script_in_a_pipe_is_left_for_the_interpreter(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [PYTHON, "-m", "cputrain.launch", "launch", "pipe.py", "--threads", "1"],
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        pipe.write_text("print('ran')")
        assert process.communicate(timeout=60)[0] == "ran\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.sh", "#!/bin/sh\n''':'\n'''\nprint('ran')\n"), ("x.bash", "print('ran')")],
)
def test_a_python_script_runs_whatever_its_name_is(tmp_path: Path, name: str, text: str) -> None:
    script(tmp_path, text, name)
    assert verb(tmp_path, "launch", name).stdout == "ran\n"


def test_threads_of_ranks_are_checked_before_the_agent_starts(folder: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    words = ("--nproc-per-node", str(cpus), "--threads", str(cpus), "ok.py")
    if cpus == 1:
        pytest.skip("needs two CPUs")
    line = complaint(verb(folder, "launch", *words))
    assert f"with {cpus} ranks, the logical CPUs that each has; found {cpus}" in line
    assert "Leave it out" in line


def test_a_variable_is_a_hint_too(folder: Path) -> None:
    line = complaint(verb(folder, "launch", "ok.py", CPUTRAIN_COMPILE="yes"))
    assert "CPUTRAIN_COMPILE must be one of auto, on, off; found 'yes'. Did you mean on?" in line


@pytest.mark.parametrize("budget", ["10", "10s", "90s", "2m", "1h", "1H", "24h"])
def test_durations_have_units(folder: Path, budget: str) -> None:
    """They are read before the script, which trains for no step, is found to be none."""
    line = complaint(verb(folder, "tune", "--budget", budget, "--steps", "0", "ok.py"))
    assert "--steps" in line
