"""Type Ctrl-C in a script's terminal: `python -m tests.pool.interrupting SCRIPT DELAY…`.

Prints what the script did as a line of JSON for each delay. Each script is forked off this process,
which has imported torch for all of them.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import cputrain
from tests.pool.functions import gone, in_session

WITHIN_S = 3.0
"""From Ctrl-C to the end of all processes."""

LIMIT_S = 10.0
"""After which they are killed."""


def interrupted(source: str, delay_s: float) -> dict[str, object]:
    """Run a script in a terminal of its own; type Ctrl-C so long after it has said "begin"."""
    child, terminal = pty.fork()
    if child == 0:
        # whoever runs the tests in the background ignores Ctrl-C, and children inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exec(compile(source, "script.py", "exec"), globals())
        sys.exit()
    shown = b""
    begun_at: float | None = None
    typed_at: float | None = None
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        wait_s = 0.2
        if begun_at is not None and typed_at is None:
            wait_s = max(0.0, begun_at + delay_s - time.monotonic())
        if select.select([terminal], [], [], wait_s)[0]:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # nobody has the terminal open any more
                break
            if begun_at is None and b"begin" in shown:
                begun_at = time.monotonic()
        now = time.monotonic()
        if begun_at is not None and typed_at is None and now >= begun_at + delay_s:
            os.write(terminal, b"\x03")
            typed_at = now
            limit = now + LIMIT_S
    typed_at = typed_at or time.monotonic()
    is_gone = gone(child, max(0.5, typed_at + WITHIN_S - time.monotonic()))
    elapsed_s = time.monotonic() - typed_at
    if not is_gone:
        for process in in_session(child):
            os.kill(process, signal.SIGKILL)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return {
        "delay_s": delay_s,
        "shown": shown.decode(errors="replace").replace("\r", ""),
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "is_gone": is_gone,
        "elapsed_s": elapsed_s,
        "left_in_shm": [name for name in os.listdir("/dev/shm") if str(child) in name],
    }


if __name__ == "__main__":
    cputrain.Pool, cputrain.fill  # noqa: B018  (imports torch)
    for delay in sys.argv[2:]:
        print(json.dumps(interrupted(Path(sys.argv[1]).read_text(), float(delay))), flush=True)
