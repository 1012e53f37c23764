"""Shutdown of a rank: write its error for the elastic agent, and let gloo's threads finish.

The agent's report of a failed job has the traceback of the rank that failed first, if that rank has
written it to its error file.

A gloo thread releases the tensors of the last all-reduce after it has signalled completion. If
interpreter finalization has begun by then, the process ends with SIGABRT ("terminate called without
an active exception"): a rank that has done all its work counts as failed, and all are restarted.
So finalization waits a moment, in which such a thread can take the GIL.

For the same tensors the thread waits forever if a group is destroyed with the GIL held, as the
destructor joins the thread. The reducer of a DistributedDataParallel model does that when nothing
else references its group, and the rank hangs at the end of its script. So groups are kept until
finalization.
"""

from __future__ import annotations

import os
import sys
import time
from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

WAIT_S = 0.05
"""Seconds of that wait; a thread that is ready to run needs microseconds."""


def wait_for_threads(pid: int) -> None:
    """Wait for gloo's threads; an exit handler of the process `pid`."""
    if os.getpid() == pid:  # not in forked workers
        time.sleep(WAIT_S)


def keep_process_groups(torch: ModuleType) -> None:
    """Keep the process groups that the script destroys until finalization.

    Python's own reference, unlike a reducer's, releases the GIL when it destroys a group.
    """
    from cputrain.runtime.patching import Patch

    c10d = torch.distributed.distributed_c10d
    destroy = c10d.destroy_process_group

    @wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        _groups.update(c10d._world.pg_map)
        destroy(*args, **kwargs)

    for module in (c10d, torch.distributed):
        Patch(module, "destroy_process_group", destroy_process_group)


_groups: set[Any] = set()
"""Process groups that the script has destroyed."""


def note_on_ranks(torch: ModuleType) -> str:
    """Return a note for a rank that never found the others; "" for any other process.

    A script that reads its rank may divide work without torch.distributed.
    """
    num_ranks = os.environ.get("WORLD_SIZE", "1")
    distributed = torch.distributed
    if (
        num_ranks == "1"
        or not distributed.is_available()
        or distributed.is_initialized()
        or _groups
    ):
        return ""
    text = _text_of_script()
    if "RANK" in text or "optim" not in text:
        return ""
    return (
        f"the script did not use torch.distributed: {num_ranks} ranks have run the same training; "
        f"for one training on all cores, leave --nproc-per-node out, or say --replicas {num_ranks}"
    )


def _text_of_script() -> str:
    """Return the text of the script; "" if it cannot be read."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(path or "", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write_errors() -> None:
    """Install an excepthook that writes the error to the file that the elastic agent reads."""
    show = sys.excepthook

    def write_error(
        error_type: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        show(error_type, error, traceback)
        if ERROR_FILE in os.environ and not isinstance(error, KeyboardInterrupt):
            import json
            from contextlib import suppress
            from traceback import format_exception

            callstack = "".join(format_exception(error_type, error, traceback))
            extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
            message = {"message": f"{error_type.__name__}: {error}", "extraInfo": extra}
            path = os.environ[ERROR_FILE]
            with suppress(OSError):
                with open(f"{path}.new", "w") as file:
                    json.dump({"message": message}, file)
                os.replace(f"{path}.new", path)  # atomic

    sys.excepthook = write_error
