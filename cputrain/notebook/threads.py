"""Setting `threads` in a running process, whose OpenMP threads may exist already."""

from __future__ import annotations

from cputrain.runtime.openmp import loaded_runtimes
from cputrain.runtime.threads import Threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.plan import Decision

POLICY = "threads"

OMP_PAUSE_SOFT = 1


def is_so(torch: ModuleType, decision: Decision) -> bool:
    """Return whether torch has this number of threads."""
    return bool(torch.get_num_threads() == decision.value)


def apply(torch: ModuleType, decision: Decision) -> Threads:
    """Set torch's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(decision.value)
    return Threads(torch, before)


def begin_anew() -> bool:
    """End OpenMP's threads, so that new ones inherit this thread's state; return whether it worked.

    Flush-to-zero and the memory policy belong to a thread, which inherits them at its start. Fails
    if an OpenMP runtime is loaded that cannot end its threads.
    """
    paths = loaded_runtimes()
    return bool(paths) and all("libgomp" in path and _end_threads(path) for path in paths)


def _end_threads(path: str) -> bool:
    import ctypes

    try:
        pause = ctypes.CDLL(path).omp_pause_resource_all
    except (OSError, AttributeError):  # its file is gone, or it is older than OpenMP 5
        return False
    return bool(pause(OMP_PAUSE_SOFT) == 0)
