"""Workers end at once with the process of their loader, whatever either of them is doing."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.data.test_faults import _runs, started

BUSY = """
import ctypes, subprocess, threading
def sleep():
    time.sleep(600)
def compute():
    sum(range(10**12))  # one call in C, which looks at no signal
def wait_for_a_child():
    subprocess.run(["sleep", "600"])
def ignore_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGIO):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)
class Busy:
    def __len__(self):
        return 100
    def __getitem__(self, row):
        if row < 2:
            return row
        {work}()
def end_by_fork():
    # the process that goes on has copies of all that the loader had open
    if os.fork():
        os._exit(0)
    time.sleep(600)
def end():
    {end}
if __name__ == "__main__":
    def run():
        global iterator
        options = dict(multiprocessing_context="{method}", persistent_workers={persistent})
        loader = DataLoader(Busy(), num_workers=2, **options)
        iterator = iter(loader)
        next(iterator), next(iterator)
    if {in_thread}:
        # workers outlive the thread that started them, but not the process
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    time.sleep(0.3)
    assert all(worker.is_alive() for worker in iterator._workers)
    print(*(worker.pid for worker in iterator._workers), flush=True)
    sys.stdin.readline()
    end()
"""

ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
    "os._exit": "os._exit(3)",
    "crash": "ctypes.string_at(8)",
    "exec": "os.execv('/bin/true', ['true'])",
    "sys.exit": "sys.exit(3)",
    "fork": "end_by_fork()",
}
WORK = ("sleep", "compute", "wait_for_a_child", "ignore_signals")


CASES = [
    *(("fork", end, WORK[place % len(WORK)]) for place, end in enumerate(ENDS)),
    ("spawn", "SIGKILL", "compute"),
    ("forkserver", "SIGKILL", "sleep"),
    ("forkserver", "os._exit", "ignore_signals"),
]


@pytest.mark.parametrize(("method", "end", "work"), CASES)
def test_busy_workers_end_with_the_script(tmp_path: Path, method: str, end: str, work: str) -> None:
    place = list(ENDS).index(end)
    text = BUSY.format(
        method=method,
        end=ENDS[end],
        work=work,
        persistent=bool(place % 2),
        in_thread=bool(place % 3 == 0),
    )
    process = started(tmp_path, text, stdin=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2, process.stderr
        assert all(map(_runs, pids))
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(10)
        deadline = time.monotonic() + 1
        while left := [pid for pid in pids if _runs(pid)]:
            assert time.monotonic() < deadline, f"workers {left} are left"
            time.sleep(0.01)
    finally:
        # whatever else is left of its session: what the workers had started
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_an_iterator_that_outlives_all_modules_ends_without_a_word(tmp_path: Path) -> None:
    """Modules are taken down before `sys`, and so before the iterator."""
    text = """
class Rows:
    def __len__(self):
        return 100
    def __getitem__(self, row):
        return row
if __name__ == "__main__":
    sys.iterator = iter(DataLoader(Rows(), num_workers=2))
    next(sys.iterator)
"""
    process = started(tmp_path, text)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
