"""Scripts with pools, each in a process and a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import PYTHON, environment
from tests.pool.functions import gone

LIMIT = 60
"""Seconds after which a script is taken to hang."""

HEAD = """
import os, resource, signal, sys, threading, time
import torch
from cputrain import Pool
from tests.pool import functions as f
"""


def started(folder: Path, text: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """A script, with the functions of workers as `f`, in a session of its own."""
    path = folder / "script.py"
    path.write_text(HEAD + text)
    return subprocess.Popen(
        [*words, PYTHON, str(path)],
        cwd=folder,
        env=environment(folder, PYTHONPATH=str(Path(__file__).parents[2])),
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def ended(folder: Path, text: str, *words: str, **options: Any) -> tuple[int, str, str]:
    """A script's exit code, and what it said; it must end in time, and leave no process."""
    process = started(folder, text, *words, **options)
    try:
        out, err = process.communicate(timeout=LIMIT)
        assert gone(process.pid, 3), (out, err)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def with_small_dev_shm(size: str = "1m") -> list[str]:
    """The words before a command that has hardly any /dev/shm."""
    mount = f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
    for options in ("-rm", "-m"):
        words = ["unshare", options, "sh", "-c", mount, "sh"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("/dev/shm can be hidden from no process here")
