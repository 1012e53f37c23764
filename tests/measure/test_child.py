"""Processes that are measured: what they print, and that nothing of them is left."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cputrain.measure import child
from cputrain.measure.child import CaseFailedError, kill_process_group, run_case, start_process

FAMILY = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_children_of_a_process_are_killed_with_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        process_group=0, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    kill_process_group(process)
    assert process.returncode is not None
    end = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def test_a_process_has_a_group_of_its_own_and_none_of_our_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CPUTRAIN_THREADS", "1")
    code = "import os; print(os.getpgid(0) == os.getpid(), 'CPUTRAIN_THREADS' in os.environ)"
    with (tmp_path / "out").open("w+b") as out:
        start_process([sys.executable, "-c", code], out, out).wait()
        out.seek(0)
        assert out.read().split() == [b"True", b"False"]
    assert "CPUTRAIN_THREADS" in os.environ


def test_what_a_process_printed_is_read_from_its_first_letter() -> None:
    file = io.BytesIO(b"first \n second\n\n")
    file.read()
    assert child._read_lines(file) == ["first ", " second"]


def test_a_case_that_fails_is_named_by_its_last_line() -> None:
    with pytest.raises(CaseFailedError, match=r"exit code 1: .*No module named") as failed:
        run_case("cputrain.no_such_module", {})
    assert failed.value.code == 1
