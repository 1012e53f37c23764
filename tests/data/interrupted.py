"""Scripts that load data until Ctrl-C is typed, each in a terminal of its own.

Run as a program, it imports torch once, and forks a child for each trial that it is asked for. The
child goes on at the top of its main module, so an interrupt ends it as it ends any script.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from cputrain.data import DataLoader


class Rows:
    """Rows that take some time to make."""

    def __init__(self, count: int, pause_s: float = 0.0) -> None:
        self.count = count
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        if self.pause_s:
            time.sleep(self.pause_s)
        return torch.full((3000,), row), str(row)


class Stubborn(Rows):
    """Rows whose making does not end by Ctrl-C."""

    def __getitem__(self, row: int) -> Any:
        if row > 20:
            while True:
                try:
                    time.sleep(100)
                except BaseException:
                    continue
        return super().__getitem__(row)


def whole_epochs(loader: Any) -> None:
    while True:
        for _ in loader:
            pass


def epochs_left_early(loader: Any) -> None:
    while True:
        for number, _ in enumerate(loader):
            if number == 3:
                break


def new_loaders(make: Callable[[], Any]) -> None:
    while True:
        for _ in make():
            pass


def new_loaders_left_early(make: Callable[[], Any]) -> None:
    while True:
        next(iter(make()))


def nested(make: Callable[[], Any]) -> None:
    while True:
        for number, _ in enumerate(make()):
            if number % 4 == 0:
                for _ in make():
                    pass


def keeping(loader: Any) -> None:
    kept: list[Any] = []
    while True:
        for batch in loader:
            kept.append(batch)
            if len(kept) == 40:
                del kept[::2]


def caught(loader: Any) -> None:
    try:
        whole_epochs(loader)
    except KeyboardInterrupt:
        del loader
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def scripts(method: str) -> dict[str, Callable[[], None]]:
    def loader(rows: int = 48, pause_s: float = 0.002, **options: Any) -> Any:
        return DataLoader(
            Rows(rows, pause_s), 4, num_workers=2, multiprocessing_context=method, **options
        )

    return {
        "whole epochs": lambda: whole_epochs(loader()),
        "persistent": lambda: whole_epochs(loader(persistent_workers=True)),
        "persistent, left early": lambda: epochs_left_early(loader(persistent_workers=True)),
        "left early": lambda: epochs_left_early(loader()),
        "new loaders": lambda: new_loaders(lambda: loader(8, 0)),
        "new persistent loaders": lambda: new_loaders(
            lambda: loader(8, 0, persistent_workers=True)
        ),
        "new loaders, left early": lambda: new_loaders_left_early(loader),
        "nested": lambda: nested(lambda: loader(16)),
        "batches are kept": lambda: keeping(loader(200, 0)),
        "long waits": lambda: whole_epochs(loader(400, 30.0)),
        "caught": lambda: caught(loader(persistent_workers=True)),
        "in memory": lambda: whole_epochs(
            DataLoader(torch.utils.data.TensorDataset(torch.ones(5000, 2000)), 8, num_workers=2)
        ),
        "stubborn workers": lambda: whole_epochs(
            DataLoader(Stubborn(100), 4, num_workers=2, multiprocessing_context=method)
        ),
    }


def trial(name: str, method: str, delay_s: float) -> dict[str, Any] | None:
    """Run a script, type Ctrl-C, and return how it ended; None in the child."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGQUIT)
        return None
    shown = b""
    typed_at = 0.0
    asked = False
    starts_at = None
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.005)
        if ready:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:
                part = b""
            if not part:
                break
            shown += part
        now = time.monotonic()
        if starts_at is None and b"ready" in shown:
            starts_at = now
        if starts_at is not None and not typed_at and now >= starts_at + delay_s:
            typed_at = now
            os.write(terminal, b"\x03")
        if typed_at and now > typed_at + 8 and not asked:
            os.kill(child, signal.SIGQUIT)  # it shows what it does
            asked = True
        if typed_at and now > typed_at + 9:
            break
    pid, status = os.waitpid(child, os.WNOHANG)
    while not pid and time.monotonic() < typed_at + 10:
        time.sleep(0.005)
        pid, status = os.waitpid(child, os.WNOHANG)
    took_s = time.monotonic() - typed_at
    left = in_session(child)
    deadline = time.monotonic() + 0.5
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = in_session(child)
    named = [name for name in os.listdir("/dev/shm") if str(child) in name]
    if not pid:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for orphan in left:
        os.kill(orphan, signal.SIGKILL)
    os.close(terminal)
    return {
        "interrupted": bool(pid)
        and os.WIFSIGNALED(status)
        and os.WTERMSIG(status) == signal.SIGINT,
        "status": status if pid else None,
        "took_s": took_s,
        "left": left,
        "shared_memory": named,
        "shown": shown.decode(errors="replace"),
    }


def in_session(session: int) -> list[int]:
    """Processes of a session other than its leader; fork servers and trackers end by themselves."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == session:
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry))
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        name, method, delay_s = json.loads(line)
        report = trial(name, method, delay_s)
        if report is None:
            break
        print(json.dumps(report), flush=True)
    else:
        raise SystemExit
    print("ready", flush=True)
    # a spawned worker imports this module by its name, not as the main module
    from tests.data import interrupted

    interrupted.scripts(method)[name]()
