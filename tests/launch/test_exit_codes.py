"""The exit code is the script's own; where it never ran, it says why."""

from __future__ import annotations

import os
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.launch.programs import (
    CPUTRAIN,
    LAUNCH,
    PYTHON,
    complaint,
    environment,
    in_terminal,
    launch,
    plain,
    run,
    script,
)

pytestmark = pytest.mark.executed


@pytest.mark.parametrize(
    "text",
    [
        "pass",
        "import sys; sys.exit(1)",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('text')",
        "import sys; sys.exit(None)",
        "import sys; sys.exit(256 + 7)",
        "def f(): raise ValueError('no')\nf()",
        "import os; os._exit(9)",
        "import os; os.abort()",
        "this is no Python",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "raise KeyboardInterrupt",
    ],
)
def test_a_script_ends_as_it_does_under_plain_python(tmp_path: Path, text: str) -> None:
    script(tmp_path, text)
    ours, theirs = launch(tmp_path, "x.py"), plain(tmp_path, "x.py")
    assert ours.returncode == theirs.returncode
    assert ours.stdout == theirs.stdout
    assert ours.stderr == theirs.stderr


def test_a_signal_from_outside_reaches_the_script_itself(tmp_path: Path) -> None:
    script(tmp_path, "import sys, time; print('ready', flush=True); time.sleep(60)")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [*LAUNCH, "x.py"], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(30) == -number


def test_the_shell_sees_128_and_the_signal(tmp_path: Path) -> None:
    script(tmp_path, "import os; os.kill(os.getpid(), 15)")
    done = run(("sh", "-c", f"{CPUTRAIN} launch x.py; echo $?"), tmp_path)
    assert done.stdout.strip() == "143"


def test_control_c_in_a_terminal_interrupts_as_under_plain_python(tmp_path: Path) -> None:
    # one line: wherever in it the interrupt arrives, the traceback is the same, but for its marks
    script(tmp_path, "import time; print('ready', flush=True); time.sleep(60)\n")
    ours, our_status = in_terminal((*LAUNCH, "x.py"), tmp_path, "\x03")
    theirs, their_status = in_terminal((PYTHON, "x.py"), tmp_path, "\x03")
    assert our_status == their_status
    ours, theirs = (
        [line for line in text.splitlines() if line.strip(" ^")] for text in (ours, theirs)
    )
    assert ours[-3:] == theirs[-3:]
    assert "KeyboardInterrupt" in ours[-1]


def test_a_script_may_catch_control_c(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import sys, time\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved')\n    sys.exit(5)\n",
    )
    shown, status = in_terminal((*LAUNCH, "x.py"), tmp_path, "\x03")
    assert "saved" in shown
    assert os.waitstatus_to_exitcode(status) == 5


def test_what_is_not_there_ends_with_127(tmp_path: Path) -> None:
    for words in (["none.py"], ["none/x.py"], [""], ["--", "-none.py"], ["--cmd", "--", "none"]):
        assert "does not exist" in complaint(launch(tmp_path, *words), 127)
    assert "does not exist" in complaint(launch(tmp_path, "--cmd", "./none"), 127)


def test_what_cannot_be_run_ends_with_126(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    script(tmp_path, "no command", "notes.txt")
    (tmp_path / "broken.py").symlink_to("nowhere.py")
    (tmp_path / "wrong").write_bytes(b"\x7fELF is not all there is to it")
    (tmp_path / "wrong").chmod(0o755)
    assert "without __main__.py" in complaint(launch(tmp_path, "folder"), 126)
    assert "broken link" in complaint(launch(tmp_path, "broken.py"), 126)
    assert "executable" in complaint(launch(tmp_path, "--cmd", "--", "./notes.txt"), 126)
    assert "folder" in complaint(launch(tmp_path, "--cmd", "--", "./folder"), 126)
    complaint(launch(tmp_path, "-q", "--cmd", "--", "./wrong"), 126)


def test_usage_errors_end_with_2(tmp_path: Path) -> None:
    for words in ([], ["--nonsense", "x.py"], ["-m"], ["-m", "--cmd", "x"], ["--threads"]):
        complaint(launch(tmp_path, *words), 2)


def test_a_folder_and_an_archive_with_a_main_run(tmp_path: Path) -> None:
    text = "import sys; print(__name__, __file__, sys.argv, sys.path[0]); sys.exit(4)"
    script(tmp_path, text, "app/__main__.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", text)
    for name in ("app", "app.zip", "./app", str(tmp_path / "app")):
        ours, theirs = launch(tmp_path, name, "a"), plain(tmp_path, name, "a")
        assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
        assert ours.returncode == 4


def test_a_command_ends_as_it_ends(tmp_path: Path) -> None:
    done = launch(tmp_path, "--cmd", "--", "sh", "-c", "exit 42")
    assert done.returncode == 42
    done = launch(tmp_path, "--cmd", "sh", "-c", "kill -9 $$")
    assert done.returncode == -9
    assert done.stderr == ""


def test_a_module_that_is_missing_fails_as_under_python(tmp_path: Path) -> None:
    ours, theirs = launch(tmp_path, "-m", "no.such"), plain(tmp_path, "-m", "no.such")
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)
