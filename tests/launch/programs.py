"""Child processes for the tests: plain python beside cputrain launch, in a clean environment."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

PYTHON = sys.executable
CPUTRAIN = str(Path(sysconfig.get_path("scripts")) / "cputrain")
VERB = (PYTHON, "-m", "cputrain.launch")
LAUNCH = (*VERB, "launch")

OURS = re.compile(
    r"(CPUTRAIN|PYTHON|OMP|MKL|KMP|GOMP|MALLOC|GLIBC|LD_|LOCAL_|SLURM|OMPI|MPI_|TORCHELASTIC"
    r"|ACCELERATE|XDG|MV2)"
)
"""Variables that a test sets itself, or has not at all."""

VIEW = """
import json, os, sys
def view():
    spec = globals().get("__spec__")
    return {
        "argv": sys.argv, "path": sys.path, "flags": repr(sys.flags), "orig_argv": sys.orig_argv,
        "name": __name__, "file": globals().get("__file__"), "package": __package__,
        "spec": spec and [spec.name, spec.origin, spec.parent], "cwd": os.getcwd(),
        "modules": sorted(name for name in sys.modules if "customize" in name),
        "warnoptions": sys.warnoptions, "meta_path": len(sys.meta_path) > 0,
        "umask": os.umask(0o22), "executable": sys.executable, "xoptions": sys._xoptions,
        "prefix": sys.prefix, "argv0": sys.argv[:1],
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
    }
print(json.dumps(view()))
"""
"""A script that prints what a script can see of how it was started."""


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """This process's environment without what matters to us, with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"),
        **changes,
    }


def run(
    argv: tuple[str, ...] | list[str],
    folder: Path,
    *,
    stdin: str | None = "",
    where: Path | None = None,
    **changes: str,
) -> subprocess.CompletedProcess[str]:
    """A program to its end, started in `folder`."""
    return subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        cwd=where or folder,
        env=environment(folder, **changes),
        timeout=120,
        check=False,
    )


def plain(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`python WORDS`."""
    return run((PYTHON, *words), folder, **options)


def launch(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`cputrain launch WORDS`."""
    return run((*LAUNCH, *words), folder, **options)


def from_shell(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`cputrain launch WORDS` as --dry-run writes it, so that no launcher runs before."""
    shown = launch(folder, "--dry-run", *words, **options)
    command = [line for line in shown.stdout.splitlines() if line.startswith("env ")]
    assert len(command) == 1, (shown.stdout, shown.stderr)
    return run(("sh", "-c", command[0]), folder, **options)


def verb(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`cputrain WORDS`."""
    return run((*VERB, *words), folder, **options)


def planned(folder: Path, *words: str, **options: Any) -> dict[str, Any]:
    """The decisions of `cputrain plan --json WORDS`, by policy."""
    done = verb(folder, "plan", "--json", *words, **options)
    assert done.returncode == 0, done.stderr
    return {found["policy"]: found for found in json.loads(done.stdout)["decisions"]}


def script(folder: Path, text: str, name: str = "x.py") -> Path:
    """A script in `folder`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def complaint(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line that a command ended with; fails where it is anything else."""
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert "[internal]" not in done.stderr, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("cputrain")
    assert len(lines[0]) < 1000
    return lines[0]


def ours(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of ours on standard error."""
    return [line for line in done.stderr.splitlines() if line.startswith("cputrain")]


def in_terminal(argv: tuple[str, ...], folder: Path, *typed: str) -> tuple[str, int]:
    """A program with a terminal of its own; each text is typed once the one before was answered.

    The program says that it is ready for the next by printing `>>>` or `ready`.
    """
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        # whoever runs the tests in the background ignores Ctrl-C, and children inherit that
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(folder)
        os.execve(argv[0], list(argv), environment(folder, TERM="dumb"))
    shown = b""
    waiting = list(typed)
    end = time.monotonic() + 60
    answered = 0
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        if ready:
            try:
                part = os.read(terminal, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
        prompts = len(re.findall(rb">>> |ready", shown))
        if waiting and prompts > answered:
            answered = prompts
            os.write(terminal, waiting.pop(0).encode())
    os.close(terminal)  # a program that still runs is hung up
    _, status = os.waitpid(child, 0)
    return shown.decode(errors="replace"), status
